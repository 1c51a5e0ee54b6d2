"""Objects by key: the protocol of every place where content, state or checkpoints are kept."""

from __future__ import annotations

import re
from typing import BinaryIO, Iterator, NamedTuple, Optional, Protocol, Sequence, Union

from trainctl.errors import StorageError

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether an object may have this name: parts of ``[A-Za-z0-9._-]`` that don't begin with a dot, separated by ``/``."""
    return _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key itself. StorageError if it isn't one, so that no name leaves its store."""
    if not is_key(key):
        raise StorageError(
            f"{key!r} is not the name of an object",
            "Names are made of letters, digits, '.', '_' and '-', in parts separated by '/', none of which begins with a dot.",
        )
    return key


class ObjectStat(NamedTuple):
    """An object without its bytes: ``size`` in bytes, ``modified`` in Unix seconds by the store's own clock."""

    key: str
    size: int
    modified: float


class ObjectStore(Protocol):
    """Objects below one root, by keys as ``check_key`` knows them.

    Every method may raise a TrainctlError with the remedy, StorageError as a rule, and may be called from many threads.
    """

    @property
    def url(self) -> str:
        """The root, as a manifest names it."""
        ...

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """The object's bytes, or ``length`` of them from ``offset`` on; None if there is no such object."""
        ...

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """Copy an object of any size into an open, empty file; False if there is no such object."""
        ...

    def put(
        self, key: str, data: Union[bytes, bytearray, memoryview], *, durable: bool = True
    ) -> None:
        """Create or replace an object atomically: readers see the old bytes or the new.

        An object that is not ``durable`` may be lost or damaged by a power cut until ``sync`` returns.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object durably; False, and nothing written, if the key exists."""
        ...

    def sync(self, keys: Sequence[str]) -> None:
        """Make objects durable that were put without."""
        ...

    def stat(self, key: str) -> Optional[ObjectStat]:
        """Size and age of an object; None if there is no such object."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """The objects whose key begins with ``prefix`` and a slash, all if it is empty, in the order of keys, those behind ``after`` only."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; no error for keys that don't exist."""
        ...
