"""Blobs in the node's cache: fetched by verified chunks, resumed, stamped, healed. See DESIGN.md, invariants 1, 2 and 5."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Deque, Iterable, List, Optional, Tuple

from trainctl.node.failure import Failure
from trainctl.node.files import make_directory, make_durable, sync_directory
from trainctl.node.layout import Layout
from trainctl.node.listing import File, Piece
from trainctl.node.lock import Lock
from trainctl.node.origin import Origin

if TYPE_CHECKING:
    from concurrent.futures import Future

Progress = Callable[[int], None]
_STAMP_BASE = 0x20000000
_READ_BYTES = 2**20
_OPEN_ATTEMPTS = 5


def stamp(sha256: str) -> int:
    """The mtime, in seconds, that says "verified": no clock of this century writes it by accident."""
    return _STAMP_BASE + int(sha256[:8], 16) % _STAMP_BASE


def is_stamped(found: os.stat_result, file: File) -> bool:
    """Whether the size and times are those of the verified content."""
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_size == file.size
        and found.st_mtime == stamp(file.sha256)
    )


def has_content(path: Path, file: File) -> bool:
    """Whether every byte is that of the file; one that the disk can't read is wrong."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return size == file.size and _good_pieces(stream.fileno(), file.pieces) == len(
                file.pieces
            )
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise


class Blobs:
    """The blobs under one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def whole(self, file: File) -> bool:
        """Whether the blob is here and right. One that looks touched is hashed; a wrong one goes back to ``partial``."""
        path = self._layout.blob(file.sha256)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        if is_stamped(found, file):
            return True
        if stat.S_ISREG(found.st_mode) and found.st_size == file.size:
            with path.open("rb") as stream:
                good = _good_pieces(stream.fileno(), file.pieces) == len(file.pieces)
            if good:
                _seal_file(path, file)
                return True
        path.replace(self._layout.part(file.sha256))
        return False

    def right(self, file: File) -> bool:
        """Whether the blob is here and every byte of it is right, whatever its times say; a wrong one goes back to ``partial``."""
        path = self._layout.blob(file.sha256)
        with contextlib.suppress(FileNotFoundError):
            if has_content(path, file):
                _seal_file(path, file)
                return True
            os.utime(path)  # trees link it too: nobody may believe its old stamp
            path.replace(self._layout.part(file.sha256))
        return False

    def fetch(self, file: File, origin: Origin, progress: Progress) -> bool:
        """Make the blob's content complete in ``partial``; big ones at once under their final name.

        False if there was nothing to fetch. A blob of one chunk is left for ``commit``.
        """
        if len(file.pieces) == 1:
            self._fill(file, origin, progress)
            return True
        with Lock(self._layout.locks, file.sha256):
            if self.whole(file):
                progress(file.size)
                return False
            self._fill(file, origin, progress)
            self._finish(file)
            return True

    def commit(self, files: Iterable[File]) -> None:
        """Give fetched small blobs their final names, once all of them are durable."""
        pending = list(files)
        parts = [self._layout.part(file.sha256) for file in pending]
        make_durable(parts, self._layout.partial)
        for file in pending:
            self._rename(file)

    def _fill(self, file: File, origin: Origin, progress: Progress) -> None:
        part = self._layout.part(file.sha256)
        descriptor = _open_part(part)
        try:
            if os.fstat(descriptor).st_size == 0 and file.size:
                origin.clone(file.sha256, descriptor)
            pieces = file.pieces
            good = _good_pieces(descriptor, pieces)
            progress(sum(piece.length for piece in pieces[:good]))
            _copy(pieces[good:], file, origin, descriptor, progress)
            os.ftruncate(descriptor, file.size)
            os.fchmod(descriptor, 0o444)
            os.utime(descriptor, (stamp(file.sha256), stamp(file.sha256)))
        except OSError as error:
            error.filename = error.filename or str(part)
            raise
        finally:
            os.close(descriptor)

    def _finish(self, file: File) -> None:
        make_durable([self._layout.part(file.sha256)], self._layout.partial)
        self._rename(file)
        sync_directory(self._layout.blob(file.sha256).parent)

    def _rename(self, file: File) -> None:
        path = self._layout.blob(file.sha256)
        make_directory(path.parent)
        try:
            self._layout.part(file.sha256).replace(path)
        except FileNotFoundError:
            if not path.exists():  # else another process was a moment faster with the same bytes
                raise


def _open_part(part: Path) -> int:
    """Open a partial file for writing. Another process may finish it, and so write-protect it, at any moment."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            part.chmod(0o600)
        with contextlib.suppress(PermissionError):
            return os.open(part, flags, 0o600)
    return os.open(part, flags, 0o600)


def _copy(
    pieces: List[Piece], file: File, origin: Origin, descriptor: int, progress: Progress
) -> None:
    """Read, verify, then write, piece by piece; the next is read while one is hashed."""
    if len(pieces) == 1:
        data = origin.read(file.sha256, pieces[0].offset, pieces[0].length)
        _write(descriptor, pieces[0], data, _digest(data), file)
        progress(pieces[0].length)
        return
    from concurrent.futures import ThreadPoolExecutor  # only who fetches pays for it

    with ThreadPoolExecutor(1) as hasher:
        waiting: Deque[Tuple[Piece, bytearray, Future[str]]] = deque()
        for piece in pieces:
            data = origin.read(file.sha256, piece.offset, piece.length)
            waiting.append((piece, data, hasher.submit(_digest, data)))
            if len(waiting) > 1:
                progress(_write_hashed(descriptor, waiting.popleft(), file))
        while waiting:
            progress(_write_hashed(descriptor, waiting.popleft(), file))


def _write_hashed(descriptor: int, item: Tuple[Piece, bytearray, Future[str]], file: File) -> int:
    piece, data, hashing = item
    _write(descriptor, piece, data, hashing.result(), file)
    return piece.length


def _write(descriptor: int, piece: Piece, data: bytearray, digest: str, file: File) -> None:
    if digest != piece.sha256:
        raise Failure(
            "wrong",
            f"the mirror's bytes of {file.path!a} are not those of its listing",
            f"Blob {file.sha256}, {piece.length} bytes at {piece.offset}. Nothing of them was kept.",
        )
    view = memoryview(data)
    done = 0
    while done < piece.length:
        done += os.pwrite(descriptor, view[done:], piece.offset + done)


def _digest(data: bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def _good_pieces(descriptor: int, pieces: List[Piece]) -> int:
    """How many pieces at the start of the file are already right."""
    for index, piece in enumerate(pieces):
        if _hash_range(descriptor, piece.offset, piece.length) != piece.sha256:
            return index
    return len(pieces)


def _hash_range(descriptor: int, offset: int, length: int) -> Optional[str]:
    digest = hashlib.sha256()
    end = offset + length
    while offset < end:
        data = os.pread(descriptor, min(_READ_BYTES, end - offset), offset)
        if not data:
            return None
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def _seal_file(path: Path, file: File) -> None:
    path.chmod(0o444)
    os.utime(path, (stamp(file.sha256), stamp(file.sha256)))
