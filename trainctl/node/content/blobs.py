"""Whole blobs in the node's cache: stamped, believed or hashed again, given their names. See DESIGN.md, invariants 1, 2 and 5."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Iterable, Optional

from trainctl.base.files import make_directory, make_durable, sync_directory
from trainctl.node.content.listing import File, Piece
from trainctl.node.system.layout import Layout

_STAMP_BASE = 0x20000000
_READ_BYTES = 2**20


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
            return size == file.size and _right(stream.fileno(), file)
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
        try:
            found = os.lstat(self._layout.blob_name(file.sha256))
        except FileNotFoundError:
            return False
        if is_stamped(found, file):
            return True
        path = self._layout.blob(file.sha256)
        if stat.S_ISREG(found.st_mode) and found.st_size == file.size:
            with path.open("rb") as stream:
                good = _right(stream.fileno(), file)
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

    def commit(self, files: Iterable[File]) -> None:
        """Give fetched small blobs their final names, once all of them are durable."""
        pending = list(files)
        parts = [self._layout.part_name(file.sha256) for file in pending]
        make_durable(parts, self._layout.partial)
        for file in pending:
            self._rename(file)

    def finish(self, file: File) -> None:
        """Give one fetched blob its final name, durably."""
        make_durable([self._layout.part(file.sha256)], self._layout.partial)
        self._rename(file)
        sync_directory(self._layout.blob(file.sha256).parent)

    def _rename(self, file: File) -> None:
        part, name = self._layout.part_name(file.sha256), self._layout.blob_name(file.sha256)
        with contextlib.suppress(FileNotFoundError):  # the directory is missing, or the file
            os.replace(part, name)  # noqa: PTH105 - thousands
            return
        path = Path(name)
        make_directory(path.parent)
        try:
            os.replace(part, name)  # noqa: PTH105 - thousands
        except FileNotFoundError:
            if not path.exists():  # else another process was a moment faster with the same bytes
                raise


def _right(descriptor: int, file: File) -> bool:
    return all(right_piece(descriptor, piece) for piece in file.pieces)


def right_piece(descriptor: int, piece: Piece) -> bool:
    """Whether the open file has the piece's bytes where they belong."""
    return _hash_range(descriptor, piece.offset, piece.length) == piece.sha256


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
