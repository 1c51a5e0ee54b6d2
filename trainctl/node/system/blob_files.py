"""Blobs: files by sha256, and files that are fetched chunk by chunk.

    blobs/sha256/<2>/<64>     mode 0444 and stamped: was verified and durable before it got this name
    partial/<sha256>.part     being fetched, sparse, or complete and not yet durable
    partial/<sha256>.map      a byte per chunk: 1 if verified; 1 + n if the first n MiB have arrived. A hint only

A stamp is an mtime computed from the digest, in a range that no clock writes today. Files with correct size and stamp
are trusted; others are hashed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
import threading
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Set, Union

from trainctl.base.filesystem.files import make_directory, make_durable, sync_directory, write_at
from trainctl.base.listing import CHUNK_BYTES, Chunk, ListedFile

STEP_BYTES = 2**20
"""Resolution at which the map records the progress of a chunk."""
NOT_FETCHED, VERIFIED = 0, 1
Data = Union[bytes, bytearray, memoryview]
_STAMP_BASE = 0x20000000
_READ_BYTES = 2**20
_BLOCK_BYTES = 4096
"""Multiple of the logical blocks of most devices; the others refuse direct writes with EINVAL."""
_OPEN_ATTEMPTS = 5
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("=qQQQ")


def stamp(sha256: str) -> int:
    """Mtime of a verified file, in seconds: between 1987 and 2004."""
    return _STAMP_BASE + int(sha256[:8], 16) % _STAMP_BASE


def is_stamped(status: os.stat_result, file: ListedFile) -> bool:
    """Check size and mtime of a verified file."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == file.size
        and status.st_mtime == stamp(file.sha256)
    )


def matches_file(path: Union[str, Path], file: ListedFile) -> bool:
    """Hash a file and compare it; False if the disk reports a read error."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - called for thousands of files
            size = os.fstat(stream.fileno()).st_size
            return size == file.size and all(
                matches_chunk(stream.fileno(), chunk) for chunk in file.chunk_ranges
            )
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise


def matches_chunk(descriptor: int, chunk: Chunk) -> bool:
    """Compare a chunk of an open file with its digest."""
    digest = hashlib.sha256()
    offset, end = chunk.offset, chunk.offset + chunk.length
    while offset < end:
        data = os.pread(descriptor, min(_READ_BYTES, end - offset), offset)
        if not data:
            return False
        digest.update(data)
        offset += len(data)
    return digest.hexdigest() == chunk.sha256


class BlobFiles:
    """Blobs below one directory; paths are strings, which are faster than Path."""

    def __init__(self, directory: Path) -> None:
        self.blobs = directory / "blobs" / "sha256"
        self.partial = directory / "partial"
        self._blobs, self._partial = str(self.blobs), str(self.partial)

    def blob(self, sha256: str) -> str:
        """Path of a complete blob."""
        return f"{self._blobs}/{sha256[:2]}/{sha256}"

    def part(self, sha256: str) -> str:
        """Path of a blob while it is fetched."""
        return f"{self._partial}/{sha256}.part"

    def map(self, sha256: str) -> str:
        """Path of its chunk map."""
        return f"{self._partial}/{sha256}.map"

    def chunk_marks(self, sha256: str) -> bytes:
        """Read the chunk map of a blob that is being fetched; empty if there is none."""
        try:
            return Path(self.map(sha256)).read_bytes()
        except FileNotFoundError:
            return b""

    def has(self, sha256: str) -> bool:
        """Check for a blob by name only."""
        return os.path.isfile(self.blob(sha256))  # noqa: PTH113

    def is_intact(self, file: ListedFile) -> bool:
        """Check for an intact blob; hash it if the stamp is wrong, remove it if corrupt."""
        try:
            if is_stamped(os.lstat(self.blob(file.sha256)), file):
                return True
        except FileNotFoundError:
            return False
        if self.verify(file):
            return True
        self.remove(file)
        return False

    def verify(self, file: ListedFile) -> bool:
        """Hash a blob regardless of its stamp; True if it is intact."""
        name = self.blob(file.sha256)
        try:
            if not matches_file(name, file):
                return False
            os.chmod(name, 0o444)  # noqa: PTH101
            os.utime(name, (stamp(file.sha256), stamp(file.sha256)))
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def remove(self, file: ListedFile) -> None:
        """Remove a corrupt blob, and the stamp that its other hard links share."""
        name = self.blob(file.sha256)
        with contextlib.suppress(FileNotFoundError):
            os.utime(name, follow_symlinks=False)
            if os.path.isdir(name):  # noqa: PTH112
                os.rmdir(name)  # noqa: PTH106
            else:
                os.unlink(name)  # noqa: PTH108

    def write_small(self, file: ListedFile, data: Data) -> None:
        """Write a complete, verified blob to ``partial``; ``commit`` renames it."""
        name = self.part(file.sha256)
        with add_path_to_errors(name):
            descriptor = _open_part(name)
            try:
                write_at(descriptor, 0, data)
                _finish_file(descriptor, file)
            finally:
                os.close(descriptor)

    def has_verified_part(self, file: ListedFile) -> bool:
        """Check that all bytes of a blob are in ``partial``."""
        try:
            return matches_file(self.part(file.sha256), file)
        except (FileNotFoundError, PermissionError):
            return False

    def commit(self, files: Iterable[ListedFile]) -> None:
        """Rename fetched blobs to their final names after making all of them durable."""
        pending = list(files)
        make_durable([self.part(file.sha256) for file in pending], self.partial)
        for file in pending:
            part, name = self.part(file.sha256), self.blob(file.sha256)
            with contextlib.suppress(FileNotFoundError):  # the directory is missing, or the file
                os.replace(part, name)  # noqa: PTH105
                continue
            make_directory(Path(name).parent)
            try:
                os.replace(part, name)  # noqa: PTH105
            except FileNotFoundError:
                if not os.path.exists(name):  # noqa: PTH110 - otherwise another process was faster
                    raise

    def finish(self, file: ListedFile) -> None:
        """Rename one fetched blob, durably."""
        self.commit([file])
        sync_directory(Path(self.blob(file.sha256)).parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.map(file.sha256))  # noqa: PTH108


class PartialFile:
    """A blob in ``partial`` while it is fetched. Chunks may be written concurrently.

    ``direct``: write chunks past the page cache if the file system can, as nothing reads them soon.
    """

    def __init__(self, files: BlobFiles, file: ListedFile, *, direct: bool = False) -> None:
        self._file = file
        self._name = files.part(file.sha256)
        self._descriptor = _open_part(self._name)
        self._direct = _open_direct(self._descriptor) if direct else None
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._map = os.open(files.map(file.sha256), flags, 0o600)
        self._lock = threading.Lock()
        self._missing: Set[int] = set()

    @property
    def is_new(self) -> bool:
        """Check that no data has been written."""
        return os.fstat(self._descriptor).st_size == 0

    def clone(self, source: int, chunk: Chunk) -> bool:
        """Fill a chunk with a reflink to an open file; False if unsupported."""
        argument = _CLONE_RANGE.pack(source, 0, chunk.length, chunk.offset)
        try:
            fcntl.ioctl(self._descriptor, _FICLONERANGE, argument)
        except OSError:
            return False
        return True

    def missing(self) -> List[int]:
        """Verify the present chunks; numbers of the missing ones."""
        intact = []
        for chunk in self._file.chunk_ranges:
            at, has_data = chunk.offset, chunk.length == 0
            with contextlib.suppress(OSError):  # no data after the offset; holes need no hashing
                has_data |= os.lseek(self._descriptor, at, os.SEEK_DATA) < at + chunk.length
            intact.append(has_data and matches_chunk(self._descriptor, chunk))
        os.pwrite(self._map, bytes(VERIFIED if valid else NOT_FETCHED for valid in intact), 0)
        self._missing = {number for number, valid in enumerate(intact) if not valid}
        return sorted(self._missing)

    def write_unverified(self, number: int, start: int, data: Data) -> None:
        """Write bytes of a chunk that is being received, for servers to pass on."""
        with add_path_to_errors(self._name):
            write_at(self._descriptor, number * CHUNK_BYTES + start, data)
            steps = (start + len(data)) // STEP_BYTES
            os.pwrite(self._map, bytes([steps + VERIFIED if steps else NOT_FETCHED]), number)

    def write(self, number: int, data: Data) -> bool:
        """Write a verified chunk; True if it was the last missing one."""
        offset = number * CHUNK_BYTES
        with add_path_to_errors(self._name):
            written = 0 if self._direct is None else _write_direct(self._direct, offset, data)
            write_at(self._descriptor, offset + written, memoryview(data)[written:])
            os.pwrite(self._map, bytes([VERIFIED]), number)
        with self._lock:
            self._missing.discard(number)
            return not self._missing

    def complete(self) -> None:
        """Truncate to size and stamp the file, once all chunks are present."""
        with add_path_to_errors(self._name):
            _finish_file(self._descriptor, self._file)

    def close(self) -> None:
        """Close the files."""
        os.close(self._descriptor)
        os.close(self._map)
        if self._direct is not None:
            os.close(self._direct)


def readable_bytes(marks: bytes, offset: int, length: int) -> int:
    """Length of the prefix of this range that a server may send."""
    at, end = offset, offset + length
    while at < end:
        number = at // CHUNK_BYTES
        mark = marks[number] if number < len(marks) else NOT_FETCHED
        if mark != VERIFIED:
            arrived = number * CHUNK_BYTES + max(0, mark - VERIFIED) * STEP_BYTES
            return max(at, min(arrived, end)) - offset
        at = (number + 1) * CHUNK_BYTES
    return length


@contextlib.contextmanager
def add_path_to_errors(path: str) -> Iterator[None]:
    """Add the path to OSErrors that have none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _finish_file(descriptor: int, file: ListedFile) -> None:
    os.ftruncate(descriptor, file.size)
    os.fchmod(descriptor, 0o444)
    os.utime(descriptor, (stamp(file.sha256), stamp(file.sha256)))


def _open_part(part: str) -> int:
    """Open a partial file, which another process may finish at any time."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(PermissionError):
            return os.open(part, flags, 0o600)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, 0o600)  # noqa: PTH101
    return os.open(part, flags, 0o600)


def _open_direct(descriptor: int) -> Optional[int]:
    """Open the same file past the page cache; None if unsupported."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # EINVAL, or there is no /proc
        return None


def _write_direct(descriptor: int, offset: int, data: Data) -> int:
    """Write the blocks of page-aligned data; bytes written, fewer if the file system or its device needs more."""
    blocks = memoryview(data)[: len(data) - len(data) % _BLOCK_BYTES]
    written = 0
    try:
        while written < len(blocks):
            written += os.pwrite(descriptor, blocks[written:], offset + written)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return written
