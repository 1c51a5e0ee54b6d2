"""Interface of object stores, which hold blobs and state by key."""

from __future__ import annotations

import re
from typing import BinaryIO, Iterator, NamedTuple, Optional, Protocol, Sequence, Union

from trainctl.errors import StorageError

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Return whether this is a key: ``[A-Za-z0-9._-]`` parts, no leading dots."""
    return _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Return a valid key; StorageError otherwise."""
    if not is_key(key):
        raise StorageError(
            f"invalid object key {key!r}",
            "Use letters, digits, '.', '_' and '-' in parts separated by '/'; no part may begin with a dot.",
        )
    return key


class ObjectStat(NamedTuple):
    """An object's size in bytes and modification time in Unix seconds."""

    key: str
    size: int
    modified: float


class ObjectStore(Protocol):
    """Objects below one root, by keys that ``check_key`` accepts.

    Methods are thread-safe and raise TrainctlError, usually StorageError.
    """

    @property
    def url(self) -> str:
        """Return the root as a manifest names it."""
        ...

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """Return bytes of an object from ``offset``; None if it doesn't exist."""
        ...

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """Copy an object of any size into an open, empty file; False if it doesn't exist."""
        ...

    def put(
        self, key: str, data: Union[bytes, bytearray, memoryview], *, durable: bool = True
    ) -> None:
        """Create or replace an object atomically.

        Unless ``durable``, a power cut may lose or corrupt it until ``sync`` returns.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object durably; return False and write nothing if the key exists."""
        ...

    def sync(self, keys: Sequence[str]) -> None:
        """Make objects durable that were put with ``durable=False``."""
        ...

    def stat(self, key: str) -> Optional[ObjectStat]:
        """Return an object's metadata; None if it doesn't exist."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """Yield objects below ``prefix/`` with keys after ``after``, in no particular order."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ignore missing keys."""
        ...
