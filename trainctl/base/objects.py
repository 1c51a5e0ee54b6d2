"""Interface of object stores, which hold blobs and state by key."""

from __future__ import annotations

from typing import BinaryIO, Iterator, Optional, Protocol, Sequence, Union

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import StorageError

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KEY = compile_lazily(rf"{_PART}(?:/{_PART})*")


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

    Many threads and processes may call all methods at once. A missing object is a value, never an error. Failures are
    TrainctlError, usually StorageError, after the store's own retries: callers don't repeat a call. Nothing needs closing.
    """

    @property
    def url(self) -> str:
        """Return the root as a manifest names it."""

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """Return bytes of an object from ``offset``; None if it doesn't exist.

        They are fewer than ``length`` at the object's end, and never of two versions of it.
        """

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """Copy an object of any size into an open, empty file; False if it doesn't exist.

        The store may empty the file and begin again. After an error its content is undefined.
        """

    def put(
        self, key: str, data: Union[bytes, bytearray, memoryview], *, durable: bool = True
    ) -> None:
        """Create or replace an object atomically: readers and a kill see the old or the new one. The last of several wins.

        Unless ``durable``, a power cut may lose or corrupt it until ``sync`` returns. After an error either may be there.
        """

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object durably; return False and write nothing if the key exists.

        Of several creators at most one gets True. After an error, or a kill, the object may exist: callers that must know
        put something of their own into it and read it.
        """

    def sync(self, keys: Sequence[str]) -> None:
        """Make objects durable that were put with ``durable=False``, by any process. May be repeated."""

    def stat(self, key: str) -> Optional[ObjectStat]:
        """Return an object's metadata, as ``list`` has it; None if it doesn't exist."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """Yield objects below ``prefix/`` with keys after ``after``, in no particular order.

        Objects that are put or deleted meanwhile may be listed or not. Errors may come while it is iterated.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete any number of objects; ignore missing keys, so it may be repeated. After an error some are left."""
