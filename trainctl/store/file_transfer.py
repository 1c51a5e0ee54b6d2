"""Interface of sources to mirror, and transfer of a file by chunks."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import (
    Callable,
    ContextManager,
    Dict,
    Generator,
    Iterator,
    List,
    Optional,
    Protocol,
    Tuple,
)

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import SourceFile
from trainctl.base.retry import RetryPolicy, RetryState
from trainctl.errors import SourceInterrupted, SourceMismatch, TrainctlError
from trainctl.store.lease import interrupted_error

FillFn = Callable[[memoryview], None]
"""Fills a buffer with the next bytes of a range; raises if they don't arrive."""
ProgressFn = Callable[[int, int, int], None]
"""Called with bytes done, total bytes and files done."""


class Upstream(Protocol):
    """A source with its credential; thread-safe, without retries."""

    @property
    def source(self) -> str:
        """The source's URI, for messages."""

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """Open a file for reading from ``offset``, up to 1 MiB at a time."""

    def read_range(
        self, file: SourceFile, offset: int, length: int
    ) -> ContextManager[Optional[FillFn]]:
        """Open a range by a connection of its own; None if upstream serves no ranges."""

    def checksum(self, file: SourceFile) -> str:
        """Return the file's ``checksum`` from a request for this file alone."""


PARALLEL_MIN_BYTES = 64 * 2**20
"""Smaller files are fetched over one connection."""
_CONNECTIONS = 4
_SHARED_AT_END = 2
"""Chunks at the end of a file that all connections fetch together."""
_BUFFER_BYTES = 2**20
_POLL_SECONDS = 0.1


class ChunkBufferPool:
    """Buffers for ``count`` chunks, shared by all files and allocated on demand.

    A transfer waits for one buffer at a time, and stored chunks release theirs, so there is no deadlock.
    """

    def __init__(self, count: int, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._free: List[bytearray] = []
        self._left = count
        self._changed = threading.Condition()

    def acquire(self, stop: threading.Event) -> bytearray:
        """Wait for a buffer; UserInterrupt if ``stop`` is set."""
        with self._changed:
            while not self._left:
                if stop.is_set():
                    raise interrupted_error()
                self._changed.wait(_POLL_SECONDS)
            self._left -= 1
            return self._free.pop() if self._free else bytearray(self.chunk_bytes)

    def release(self, buffer: bytearray) -> None:
        """Return a buffer to the pool."""
        with self._changed:
            self._free.append(buffer)
            self._left += 1
            self._changed.notify_all()


class BufferedChunk(NamedTuple):
    """A chunk in memory; its receiver must call ``release``."""

    number: int
    data: memoryview
    release: Callable[[], None]


class FileTransfer:
    """Receives files: ``on_bytes`` gets counts of bytes, ``stop`` interrupts."""

    def __init__(
        self,
        upstream: Upstream,
        retry: RetryPolicy,
        stop: threading.Event,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.upstream = upstream
        self.retry = retry.patient
        self.stop = stop
        self.on_bytes = on_bytes

    def read(self, file: SourceFile, into: memoryview) -> None:
        """Read a complete file into memory."""
        for offset, data in self._resumed(file, 0, file.size):
            into[offset : offset + len(data)] = data

    def chunks(
        self, file: SourceFile, numbers: range, buffers: ChunkBufferPool
    ) -> Generator[BufferedChunk, None, None]:
        """Yield chunks of a large file, in order."""
        if file.identified and len(numbers) * buffers.chunk_bytes >= PARALLEL_MIN_BYTES:
            with closing(_ParallelDownload(self, file, numbers, buffers)) as connections:
                for chunk in connections:
                    yield chunk
                    numbers = numbers[1:]
        if not numbers:
            return
        # over one connection, perhaps from 0 again after an error
        size = buffers.chunk_bytes
        end = min(numbers.stop * size, file.size)
        buffer: Optional[bytearray] = None
        try:
            for offset, data in self._resumed(file, numbers.start * size, end):
                while data:
                    buffer = buffer or buffers.acquire(self.stop)
                    number, at = divmod(offset, size)
                    length = min(size, end - number * size)
                    count = min(length - at, len(data))
                    buffer[at : at + count] = data[:count]
                    offset, data = offset + count, data[count:]
                    if at + count == length:
                        full, buffer = buffer, None
                        yield BufferedChunk(number, memoryview(full)[:length], partial(buffers.release, full))  # fmt: skip
        finally:
            if buffer is not None:
                buffers.release(buffer)

    def _resumed(self, file: SourceFile, offset: int, end: int) -> Iterator[Tuple[int, memoryview]]:
        """Yield offsets and bytes; resume after errors, if identified."""
        attempts = RetryState(self.retry, self.stop)
        while offset < end:
            before = offset
            try:
                for data in self._read(file, offset, end):
                    yield offset, memoryview(data)
                    offset += len(data)
            except TrainctlError as error:
                if not file.identified:
                    self.on_bytes(-offset)
                    offset = 0
                if offset - before >= min(_BUFFER_BYTES, file.size):
                    attempts.advanced()
                attempts.failed(error)

    def _read(self, file: SourceFile, offset: int, end: int) -> Iterator[bytes]:
        """Yield bytes from ``offset`` to ``end``; errors if the size differs."""
        source = self.upstream.source
        with self.upstream.open(file, offset) as stream:
            for data in stream:
                if self.stop.is_set():
                    raise interrupted_error()
                if end < file.size:
                    data = data[: end - offset]
                offset += len(data)
                if offset > file.size:
                    raise SourceMismatch(
                        f"{source}: {display_path(file.path)} has more than the expected {file.size} bytes",
                        "It has changed upstream since it was resolved. Plan again.",
                    )
                self.on_bytes(len(data))
                yield data
                if offset == end < file.size:
                    return
        if offset < file.size:
            raise SourceInterrupted(
                f"{source}: {display_path(file.path)}: connection closed with {file.size - offset} bytes missing"
            )


class _PartialChunk:
    """A chunk that connections are fetching; ``missing`` bytes have yet to arrive."""

    __slots__ = ("buffer", "data", "missing")

    def __init__(self, buffer: bytearray, data: memoryview, missing: int) -> None:
        self.buffer = buffer
        self.data = data
        self.missing = missing


def _plan_ranges(
    numbers: range, chunk_bytes: int, file_bytes: int
) -> Iterator[Tuple[int, int, int]]:
    """Yield the number of a chunk, and start and end of a range of it.

    All connections fetch the first chunk and the last ones, so that hashing begins early and little is left at the end.
    """
    for number in numbers:
        size = min(chunk_bytes, file_bytes - number * chunk_bytes)
        is_shared = number == numbers.start or number >= numbers.stop - _SHARED_AT_END
        step = -(-size // _CONNECTIONS) if is_shared else size
        for start in range(0, size, step):
            yield number, start, min(start + step, size)


class _ParallelDownload:
    """Iterator over chunks, in order, that several connections fetch.

    It ends early if upstream doesn't serve ranges, and raises the final error of a connection.
    """

    def __init__(
        self, transfer: FileTransfer, file: SourceFile, numbers: range, buffers: ChunkBufferPool
    ) -> None:
        self._transfer = transfer
        self._file = file
        self._buffers = buffers
        self._next = numbers.start
        self._end = numbers.stop
        self._ranges = _plan_ranges(numbers, buffers.chunk_bytes, file.size)
        self._partial: Dict[int, _PartialChunk] = {}
        self._ready: Dict[int, BufferedChunk] = {}
        self._error: Optional[BaseException] = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name="part", daemon=True)
            for _ in range(min(_CONNECTIONS, len(numbers)))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close the connections, and release unused chunks."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for partial_chunk in self._partial.values():
            self._transfer.on_bytes(partial_chunk.missing - len(partial_chunk.data))
            self._buffers.release(partial_chunk.buffer)
        for chunk in self._ready.values():
            self._transfer.on_bytes(-len(chunk.data))
            chunk.release()

    def __iter__(self) -> Iterator[BufferedChunk]:
        while self._next < self._end:
            with self._changed:
                while self._next not in self._ready:
                    if self._error is not None:
                        raise self._error
                    if self._transfer.stop.is_set():
                        raise interrupted_error()
                    if self._ended.is_set():
                        return
                    self._changed.wait(_POLL_SECONDS)
                chunk = self._ready.pop(self._next)
            self._next += 1
            yield chunk

    def _work(self) -> None:
        try:
            while self._fetch_next():
                pass
        except BaseException as error:  # noqa: BLE001  the thread that waits for chunks raises it
            with self._changed:
                if not self._ended.is_set():
                    self._error = error
                self._ended.set()
                self._changed.notify_all()

    def _fetch_next(self) -> bool:
        """Fetch the next range; return whether there may be more."""
        with self._lock:
            number, start, end = next(self._ranges, (0, 0, 0))
            if not end or self._ended.is_set():
                return False
            if start == 0:
                buffer = self._buffers.acquire(self._ended)
                size = min(len(buffer), self._file.size - number * len(buffer))
                self._partial[number] = _PartialChunk(buffer, memoryview(buffer)[:size], size)
            chunk = self._partial[number]
        is_complete = self._fetch(number * self._buffers.chunk_bytes + start, chunk.data[start:end])
        with self._changed:
            if is_complete:
                chunk.missing -= end - start
                if not chunk.missing:
                    del self._partial[number]
                    release = partial(self._buffers.release, chunk.buffer)
                    self._ready[number] = BufferedChunk(number, chunk.data, release)
            else:
                self._ended.set()
            self._changed.notify_all()
        return is_complete

    def _fetch(self, offset: int, data: memoryview) -> bool:
        """Fill a buffer; return False if upstream serves no ranges or the download ended."""
        transfer, done = self._transfer, 0
        attempts = RetryState(transfer.retry, self._ended)
        while done < len(data):
            before = done
            try:
                with transfer.upstream.read_range(
                    self._file, offset + done, len(data) - done
                ) as fill:
                    if fill is None:
                        return False
                    while done < len(data):
                        if self._ended.is_set():
                            return False
                        buffer = data[done : done + _BUFFER_BYTES]
                        fill(buffer)
                        done += len(buffer)
                        transfer.on_bytes(len(buffer))
            except TrainctlError as error:
                if done - before >= min(_BUFFER_BYTES, len(data)):
                    attempts.advanced()
                attempts.failed(error)
        return True
