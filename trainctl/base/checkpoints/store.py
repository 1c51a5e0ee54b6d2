"""Where checkpoints are kept, as all kinds of places are: objects by key. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

from typing import BinaryIO, Callable, Iterator, Optional

from trainctl.base.objects import ObjectStat
from trainctl.base.pace import Pace


class Store:
    """Objects by key. Whatever was put under a key is seen whole or not at all.

    Errors are Failure: ``store`` for what may pass (nobody answers), ``denied`` for what a person must mend, ``name``
    for a key that can't be, ``missing``; and OSError from a disk.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object."""
        raise NotImplementedError

    def put_file(self, key: str, stream: BinaryIO, size: int, pace: Pace) -> None:
        """Create or replace an object with the next ``size`` bytes of a stream, each of which is read once, in order."""
        raise NotImplementedError

    def get(self, key: str) -> Optional[bytes]:
        """A small object's bytes; None if there is none."""
        raise NotImplementedError

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Hand over an object's bytes from an offset on."""
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Every object whose key begins so."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Remove an object; no error if it is gone."""
        raise NotImplementedError

    def abandon(self, prefix: str) -> None:
        """Give up what uploads under the prefix, of which none may be going on, have left unfinished."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what was opened; it may be used again."""

    def url(self, key: str, seconds: int) -> str:
        """Where an object can be had: from a bucket by anybody, for so many seconds."""
        raise NotImplementedError
