"""Whole files by sha256 in a directory, and files that arrive chunk by chunk.

    blobs/sha256/<2>/<64>     0444 and stamped: verified, durable before it got this name
    partial/<sha256>.part     being fetched, with holes, or complete and not yet durable
    partial/<sha256>.map      a byte per chunk: 1 verified; 1 + n the first n MiB have arrived. A hint, never believed

A stamp is an mtime that is a function of the digest and that no clock of this century writes by accident. A file is
believed if size and stamp are right, and hashed again otherwise.
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
from typing import Iterable, Iterator, List, Set, Union

from trainctl.base.filesystem.files import make_directory, make_durable, sync_directory, write_at
from trainctl.base.listing import CHUNK_BYTES, Chunk, ListedFile

STEP_BYTES = 2**20
"""The map counts the bytes of an arriving chunk in steps of this size."""
NOT_FETCHED, VERIFIED = 0, 1
Data = Union[bytes, bytearray, memoryview]
_STAMP_BASE = 0x20000000
_READ_BYTES = 2**20
_OPEN_ATTEMPTS = 5
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("=qQQQ")


def stamp(sha256: str) -> int:
    """The mtime of a verified file, in seconds: in the years 1987 to 2004."""
    return _STAMP_BASE + int(sha256[:8], 16) % _STAMP_BASE


def is_stamped(status: os.stat_result, file: ListedFile) -> bool:
    """Whether size and time are those of the verified content."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == file.size
        and status.st_mtime == stamp(file.sha256)
    )


def matches_file(path: Union[str, Path], file: ListedFile) -> bool:
    """Whether every byte is the file's; a file that the disk can't read is wrong."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - thousands of names
            size = os.fstat(stream.fileno()).st_size
            return size == file.size and all(
                matches_chunk(stream.fileno(), chunk) for chunk in file.chunk_ranges
            )
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise


def matches_chunk(descriptor: int, chunk: Chunk) -> bool:
    """Whether an open file has the chunk's bytes where they belong."""
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
    """The files below one directory. Names are text, as a Path costs more than the system call that it is for."""

    def __init__(self, directory: Path) -> None:
        self.blobs = directory / "blobs" / "sha256"
        self.partial = directory / "partial"
        self._blobs, self._partial = str(self.blobs), str(self.partial)

    def blob(self, sha256: str) -> str:
        """The whole file of a content."""
        return f"{self._blobs}/{sha256[:2]}/{sha256}"

    def part(self, sha256: str) -> str:
        """The same while it is fetched."""
        return f"{self._partial}/{sha256}.part"

    def map(self, sha256: str) -> str:
        """Which chunks of it have arrived."""
        return f"{self._partial}/{sha256}.map"

    def marks(self, sha256: str) -> bytes:
        """The map of a file that is fetched; empty if there is none."""
        try:
            return Path(self.map(sha256)).read_bytes()
        except FileNotFoundError:
            return b""

    def has(self, sha256: str) -> bool:
        """Whether a blob is here, going by its name."""
        return os.path.isfile(self.blob(sha256))  # noqa: PTH113

    def is_whole(self, file: ListedFile) -> bool:
        """Whether the blob is here and right. One that looks touched is hashed, and removed if it is wrong."""
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
        """Whether the blob is here and every byte is right, whatever its time says."""
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
        """Remove a wrong blob, whose other names must not be believed either."""
        name = self.blob(file.sha256)
        with contextlib.suppress(FileNotFoundError):
            os.utime(name, follow_symlinks=False)
            if os.path.isdir(name):  # noqa: PTH112
                os.rmdir(name)  # noqa: PTH106
            else:
                os.unlink(name)  # noqa: PTH108

    def keep_small(self, file: ListedFile, data: Data) -> None:
        """Write a whole content, which was verified, into ``partial``; ``commit`` gives it its name."""
        name = self.part(file.sha256)
        with name_file_in_errors(name):
            descriptor = _open_part(name)
            try:
                write_at(descriptor, 0, data)
                _finish_file(descriptor, file)
            finally:
                os.close(descriptor)

    def is_kept(self, file: ListedFile) -> bool:
        """Whether all bytes of a content are in ``partial``."""
        try:
            return matches_file(self.part(file.sha256), file)
        except (FileNotFoundError, PermissionError):
            return False

    def commit(self, files: Iterable[ListedFile]) -> None:
        """Give fetched contents their final names, once all of them are durable."""
        pending = list(files)
        make_durable([self.part(file.sha256) for file in pending], self.partial)
        for file in pending:
            self._rename(file)

    def finish(self, file: ListedFile) -> None:
        """Give one fetched content its final name, durably."""
        self.commit([file])
        sync_directory(Path(self.blob(file.sha256)).parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.map(file.sha256))  # noqa: PTH108

    def _rename(self, file: ListedFile) -> None:
        part, name = self.part(file.sha256), self.blob(file.sha256)
        with contextlib.suppress(FileNotFoundError):  # the directory is missing, or the file
            os.replace(part, name)  # noqa: PTH105
            return
        make_directory(Path(name).parent)
        try:
            os.replace(part, name)  # noqa: PTH105
        except FileNotFoundError:
            if not os.path.exists(name):  # noqa: PTH110 - else another process was faster
                raise


class PartialFile:
    """A content in ``partial``, held open while it is fetched; many threads may write its chunks."""

    def __init__(self, files: BlobFiles, file: ListedFile) -> None:
        self._file = file
        self._name = files.part(file.sha256)
        self._descriptor = _open_part(self._name)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._map = os.open(files.map(file.sha256), flags, 0o600)
        self._lock = threading.Lock()
        self._missing: Set[int] = set()

    @property
    def is_new(self) -> bool:
        """Whether nothing of it has arrived."""
        return os.fstat(self._descriptor).st_size == 0

    def clone(self, source: int, chunk: Chunk) -> bool:
        """Fill a chunk from the start of another open file without copying bytes; False if that is impossible here."""
        wanted = _CLONE_RANGE.pack(source, 0, chunk.length, chunk.offset)
        try:
            fcntl.ioctl(self._descriptor, _FICLONERANGE, wanted)
        except OSError:
            return False
        return True

    def missing(self) -> List[int]:
        """Verify what is here; the numbers of the chunks that aren't."""
        right = [
            _has_data(self._descriptor, chunk) and matches_chunk(self._descriptor, chunk)
            for chunk in self._file.chunk_ranges
        ]
        os.pwrite(self._map, bytes(VERIFIED if is_right else NOT_FETCHED for is_right in right), 0)
        self._missing = {number for number, is_right in enumerate(right) if not is_right}
        return sorted(self._missing)

    def pass_on(self, number: int, start: int, data: Data) -> None:
        """Let servers read bytes of a chunk that is still arriving; they are not verified yet."""
        with name_file_in_errors(self._name):
            write_at(self._descriptor, number * CHUNK_BYTES + start, data)
            os.pwrite(self._map, bytes([partial_mark(start + len(data))]), number)

    def write(self, number: int, data: Data) -> bool:
        """Keep a verified chunk; whether it was the last that was missing."""
        with name_file_in_errors(self._name):
            write_at(self._descriptor, number * CHUNK_BYTES, data)
            os.pwrite(self._map, bytes([VERIFIED]), number)
        with self._lock:
            self._missing.discard(number)
            return not self._missing

    def complete(self) -> None:
        """All chunks are here: cut it to its size and stamp it."""
        with name_file_in_errors(self._name):
            _finish_file(self._descriptor, self._file)

    def close(self) -> None:
        """Close the files."""
        os.close(self._descriptor)
        os.close(self._map)


def partial_mark(length: int) -> int:
    """The mark of a chunk whose first ``length`` bytes have arrived and are not verified."""
    steps = length // STEP_BYTES
    return steps + VERIFIED if steps else NOT_FETCHED


def readable_bytes(marks: bytes, offset: int, length: int) -> int:
    """How many of these bytes of a content a server may send, counted from the first."""
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
def name_file_in_errors(path: str) -> Iterator[None]:
    """Let errors of the disk name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _finish_file(descriptor: int, file: ListedFile) -> None:
    os.ftruncate(descriptor, file.size)
    os.fchmod(descriptor, 0o444)
    os.utime(descriptor, (stamp(file.sha256), stamp(file.sha256)))


def _has_data(descriptor: int, chunk: Chunk) -> bool:
    """Whether anything was ever written there; a hole is not worth hashing."""
    try:
        return chunk.length == 0 or os.lseek(descriptor, chunk.offset, os.SEEK_DATA) < (
            chunk.offset + chunk.length
        )
    except OSError:  # no data after the offset
        return False


def _open_part(part: str) -> int:
    """Open a partial file for writing. Another process may finish it, and so write-protect it, at any moment."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(PermissionError):
            return os.open(part, flags, 0o600)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, 0o600)  # noqa: PTH101
    return os.open(part, flags, 0o600)
