"""What a mirror needs of a bucket: few operations that every object store has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """An object: its key, its size in bytes, and when it was put, in Unix seconds by the bucket's own clock."""

    key: str
    size: int
    modified: float


class Objects(Protocol):
    """Objects below a prefix, by ``/``-separated keys of ``[A-Za-z0-9._-]``. StorageError where the bucket refuses; safe to use from many threads."""

    @property
    def url(self) -> str:
        """Where they are, as a manifest names it."""
        ...

    def get(self, key: str) -> bytes | None:
        """All bytes of an object, None where there is none."""
        ...

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """The same of an object that may be long, written to a file that holds nothing else then; False where there is none."""
        ...

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        """Create or replace an object, of bytes or of a file's, whole or not at all."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; False, and nothing written, if there is one. Some stores replace it all the same and say True."""
        ...

    def head(self, key: str) -> Found | None:
        """The object without its bytes, None where there is none."""
        ...

    def list(self, prefix: str) -> Iterator[Found]:
        """Every object of a mirror's whose key begins with ``prefix`` and a slash, in the order of keys; what else lies there isn't seen."""
        ...

    def strange(self, prefix: str) -> Iterator[Found]:
        """What else lies there: objects whose names no mirror gives. Empty ones are left out, as some stores list directories so."""
        ...

    def delete(self, keys: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        """Remove objects; it is no error if there are none. ``before`` is called before every try, and may raise."""
        ...

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """URLs by which anybody may read these objects for so long."""
        ...
