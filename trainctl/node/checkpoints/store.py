"""Where checkpoints are kept, as all kinds of places are: objects by key. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO, Callable, Iterator, Mapping, NamedTuple, Optional

from trainctl.base.failure import Failure, from_os_error
from trainctl.base.pace import Pace


class Stored(NamedTuple):
    """One object."""

    key: str
    size: int
    modified: float


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

    def copy(self, key: str, to: str, size: int) -> bool:
        """Create an object of ``size`` bytes that is as another one, of which no byte comes here; False where that can't be."""
        return False

    def get(self, key: str) -> Optional[bytes]:
        """A small object's bytes; None if there is none."""
        raise NotImplementedError

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Hand over an object's bytes from an offset on."""
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[Stored]:
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


@contextlib.contextmanager
def blamed(place: Mapping[str, Any]) -> Iterator[None]:
    """Failure ``checkpoints``, which names the store, for whatever a store of its own at ``place`` refuses or can't do meanwhile."""
    url = place.get("url")
    try:
        yield
    except (Failure, OSError) as error:
        if url is None or (isinstance(error, Failure) and error.kind not in ("store", "denied")):
            raise
        why = error if isinstance(error, Failure) else from_os_error(error, str(url))
        raise Failure("checkpoints", f"checkpoint store {url}: {why.summary}", why.detail) from None
