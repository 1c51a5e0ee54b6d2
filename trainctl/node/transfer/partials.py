"""Contents while they are fetched: chunks in any order, of which only those count that were verified. See DESIGN.md, invariants 1, 2, 5 and 6."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Callable, Iterator, List, Set, Union

from trainctl.base.files import write_at
from trainctl.node.content.blobs import right_piece, stamp
from trainctl.node.content.chunk_map import VERIFIED, arriving
from trainctl.node.content.listing import File, Piece
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.gathering import Data

_OPEN_ATTEMPTS = 5


class Partial:
    """One content in ``partial``, held open by who fetches it; its chunks may be written by many threads.

    A map beside it says which chunks are verified, and how far others have come, for others on this node who serve
    them; it is never believed.
    """

    def __init__(self, layout: Layout, file: File) -> None:
        self._file = file
        self._path = layout.part(file.sha256)
        self._map_path = layout.chunk_map(file.sha256)
        self._descriptor = _open_part(self._path)
        self._map = os.open(
            self._map_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        self._lock = threading.Lock()
        self._missing: Set[int] = set()

    def clone(self, clone: Callable[[str, int], bool]) -> bool:
        """Have all of it at once, without copying bytes, if nothing is here and that is possible."""
        empty = os.fstat(self._descriptor).st_size == 0
        return empty and clone(self._file.sha256, self._descriptor)

    def missing(self) -> List[int]:
        """Look at what is here; the numbers of the chunks that are not."""
        right = [
            _has_data(self._descriptor, piece) and right_piece(self._descriptor, piece)
            for piece in self._file.pieces
        ]
        os.pwrite(self._map, bytes(VERIFIED if one else 0 for one in right), 0)
        self._missing = {index for index, one in enumerate(right) if not one}
        return sorted(self._missing)

    def pass_on(self, index: int, start: int, data: Data) -> None:
        """Have others see bytes of a chunk that is still on its way: nobody believes them before it is written."""
        with named(self._path):
            write_at(self._descriptor, self._file.pieces[index].offset + start, data)
            os.pwrite(self._map, bytes([arriving(start + len(data))]), index)

    def write(self, index: int, data: Data) -> bool:
        """Keep a chunk that was verified; whether it was the last that was missing."""
        with named(self._path):
            write_at(self._descriptor, self._file.pieces[index].offset, data)
            os.pwrite(self._map, bytes([VERIFIED]), index)
        with self._lock:
            self._missing.discard(index)
            return not self._missing

    def complete(self) -> None:
        """All chunks are here: stamp it."""
        with named(self._path):
            os.ftruncate(self._descriptor, self._file.size)
            _stamp(self._descriptor, self._file)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)
        os.close(self._map)

    def forget(self) -> None:
        """It has its final name: nobody needs the map any more."""
        with contextlib.suppress(FileNotFoundError):
            self._map_path.unlink()


def keep_small(layout: Layout, file: File, data: Data) -> None:
    """Write a whole content, which was verified, into ``partial``."""
    name = layout.part_name(file.sha256)
    with named(name):
        descriptor = _open_part(name)
        try:
            write_at(descriptor, 0, data)
            os.ftruncate(descriptor, file.size)
            _stamp(descriptor, file)
        finally:
            os.close(descriptor)


def is_kept(layout: Layout, file: File) -> bool:
    """Whether a small content lies in ``partial`` already, every byte of it."""
    path = layout.part(file.sha256)
    try:
        with path.open("rb") as stream:
            right = right_piece(stream.fileno(), file.pieces[0])
            return right and os.fstat(stream.fileno()).st_size == file.size
    except (FileNotFoundError, PermissionError):
        return False


@contextlib.contextmanager
def named(path: Union[str, Path]) -> Iterator[None]:
    """Have errors of the disk say which file they are about."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _stamp(descriptor: int, file: File) -> None:
    os.fchmod(descriptor, 0o444)
    os.utime(descriptor, (stamp(file.sha256), stamp(file.sha256)))


def _has_data(descriptor: int, piece: Piece) -> bool:
    """Whether anything was ever written there; a hole is not worth hashing."""
    try:
        return piece.length == 0 or os.lseek(descriptor, piece.offset, os.SEEK_DATA) < (
            piece.offset + piece.length
        )
    except OSError:  # nothing after the offset
        return False


def _open_part(part: Union[str, Path]) -> int:
    """Open a partial file for writing. Another process may finish it, and so write-protect it, at any moment."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(PermissionError):
            return os.open(part, flags, 0o600)
        with contextlib.suppress(FileNotFoundError):
            Path(part).chmod(0o600)
    return os.open(part, flags, 0o600)
