"""A file's bytes on their way from upstream: chunk after chunk, by several connections if upstream has parts."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import Callable, Dict, Generator, Iterator, List, NamedTuple, Optional, Tuple

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import SourceFile
from trainctl.base.retry import RetryPolicy, RetryState
from trainctl.errors import SourceInterrupted, SourceMismatch, TrainctlError, UserInterrupt
from trainctl.store.ingestion.upstream import Upstream

PARALLEL_MIN_BYTES = 64 * 2**20
"""Smaller files don't keep several connections busy."""
_CONNECTIONS = 4
_BUFFER_BYTES = 2**20
_POLL_SECONDS = 0.1


class ChunkBufferPool:
    """Memory for a number of chunks, which all files share. It is allocated when it is first needed.

    A transfer waits for one buffer at a time, and stored chunks give theirs back, so that no transfer waits forever.
    """

    def __init__(self, count: int, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._free: List[bytearray] = []
        self._left = count
        self._changed = threading.Condition()

    def take(self, halt: threading.Event) -> bytearray:
        """Wait for a buffer. Interrupted if ``halt`` is set."""
        with self._changed:
            while not self._left:
                if halt.is_set():
                    raise interrupted_error()
                self._changed.wait(_POLL_SECONDS)
            self._left -= 1
            return self._free.pop() if self._free else bytearray(self.chunk_bytes)

    def release(self, buffer: bytearray) -> None:
        """Let others have a buffer."""
        with self._changed:
            self._free.append(buffer)
            self._left += 1
            self._changed.notify_all()


class BufferedChunk(NamedTuple):
    """A chunk in memory; whoever takes it calls ``release`` when it isn't needed any more."""

    number: int
    data: memoryview
    release: Callable[[], None]


class FileTransfer:
    """How bytes are received: ``arrived`` is called with counts of bytes, ``halt`` ends it between pieces."""

    def __init__(
        self,
        upstream: Upstream,
        retry: RetryPolicy,
        halt: threading.Event,
        arrived: Callable[[int], None],
    ) -> None:
        self.upstream = upstream
        self.retry = retry.patient
        self.halt = halt
        self.arrived = arrived

    def read(self, file: SourceFile, into: memoryview) -> None:
        """Read a whole file into memory."""
        for offset, piece in self._resumed(file, 0, file.size):
            into[offset : offset + len(piece)] = piece

    def chunks(
        self, file: SourceFile, numbers: range, buffers: ChunkBufferPool
    ) -> Generator[BufferedChunk, None, None]:
        """Some chunks of a large file, in order."""
        if file.identified and len(numbers) * buffers.chunk_bytes >= PARALLEL_MIN_BYTES:
            with closing(_ParallelDownload(self, file, numbers, buffers)) as connections:
                for chunk in connections:
                    yield chunk
                    numbers = numbers[1:]
        if numbers:
            yield from self._streamed(file, numbers, buffers)

    def _streamed(
        self, file: SourceFile, numbers: range, buffers: ChunkBufferPool
    ) -> Iterator[BufferedChunk]:
        """The same by one connection. A file that nothing identifies begins anew after an error; ``number`` says so."""
        size = buffers.chunk_bytes
        end = min(numbers.stop * size, file.size)
        buffer: Optional[bytearray] = None
        try:
            for offset, piece in self._resumed(file, numbers.start * size, end):
                while piece:
                    buffer = buffer or buffers.take(self.halt)
                    number, at = divmod(offset, size)
                    length = min(size, end - number * size)
                    count = min(length - at, len(piece))
                    buffer[at : at + count] = piece[:count]
                    offset, piece = offset + count, piece[count:]
                    if at + count == length:
                        full, buffer = buffer, None
                        yield BufferedChunk(number, memoryview(full)[:length], partial(buffers.release, full))  # fmt: skip
        finally:
            if buffer is not None:
                buffers.release(buffer)

    def _resumed(self, file: SourceFile, offset: int, end: int) -> Iterator[Tuple[int, memoryview]]:
        """Pieces of a file with their offsets. After an error they go on where the connection broke, or from 0 if nothing identifies the content."""
        attempts = RetryState(self.retry, self.halt)
        while offset < end:
            before = offset
            try:
                for piece in self._pieces(file, offset, end):
                    yield offset, memoryview(piece)
                    offset += len(piece)
            except TrainctlError as error:
                if not file.identified:
                    self.arrived(-offset)
                    offset = 0
                if offset - before >= min(_BUFFER_BYTES, file.size):
                    attempts.advanced()
                attempts.failed(error)

    def _pieces(self, file: SourceFile, offset: int, end: int) -> Iterator[bytes]:
        """What upstream sends from an offset on, up to ``end``. SourceMismatch if the file goes on behind its size, SourceInterrupted if it ends early."""
        source = self.upstream.source
        with self.upstream.open(file, offset) as pieces:
            for piece in pieces:
                if self.halt.is_set():
                    raise interrupted_error()
                if end < file.size:
                    piece = piece[: end - offset]
                offset += len(piece)
                if offset > file.size:
                    raise SourceMismatch(
                        f"{source}: {display_path(file.path)} has more than the expected {file.size} bytes",
                        "It has changed upstream since it was resolved. Plan again.",
                    )
                self.arrived(len(piece))
                yield piece
                if offset == end < file.size:
                    return
        if offset < file.size:
            raise SourceInterrupted(
                f"{source}: {display_path(file.path)}: connection closed with {file.size - offset} bytes missing"
            )


class _ParallelDownload:
    """Several connections, each of which fetches the next chunk; iterate over the chunks in order.

    The iteration ends early if upstream sends whole files only, and raises the error that a connection gave up with.
    """

    def __init__(
        self, transfer: FileTransfer, file: SourceFile, numbers: range, buffers: ChunkBufferPool
    ) -> None:
        self._transfer = transfer
        self._file = file
        self._buffers = buffers
        self._next = self._asked = numbers.start
        self._end = numbers.stop
        self._ready: Dict[int, BufferedChunk] = {}
        self._error: Optional[BaseException] = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name="part", daemon=True)
            for _ in range(min(_CONNECTIONS, len(numbers)))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the connections, and give back what nobody took."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for chunk in self._ready.values():
            self._transfer.arrived(-len(chunk.data))
            chunk.release()

    def __iter__(self) -> Iterator[BufferedChunk]:
        while self._next < self._end:
            chunk = self._wait()
            if chunk is None:
                return
            self._next += 1
            yield chunk

    def _wait(self) -> Optional[BufferedChunk]:
        with self._changed:
            while self._next not in self._ready:
                if self._error is not None:
                    raise self._error
                if self._transfer.halt.is_set():
                    raise interrupted_error()
                if self._over.is_set():
                    return None
                self._changed.wait(_POLL_SECONDS)
            return self._ready.pop(self._next)

    def _work(self) -> None:
        try:
            while self._fetch_next():
                pass
        except BaseException as error:  # noqa: BLE001  the thread that waits for chunks raises it
            with self._changed:
                if not self._over.is_set():
                    self._error = error
                self._over.set()
                self._changed.notify_all()

    def _fetch_next(self) -> bool:
        """Fetch the next chunk that no other connection fetches; whether there may be more."""
        with self._turn:
            number = self._asked
            if number >= self._end or self._over.is_set():
                return False
            buffer = self._buffers.take(self._over)
            self._asked += 1
        size = min(len(buffer), self._file.size - number * len(buffer))
        data, is_here = memoryview(buffer)[:size], False
        try:
            is_here = self._fetch(number * len(buffer), data)
        finally:
            if not is_here:
                self._buffers.release(buffer)
        with self._changed:
            if is_here:
                self._ready[number] = BufferedChunk(
                    number, data, partial(self._buffers.release, buffer)
                )
            else:
                self._over.set()
            self._changed.notify_all()
        return is_here

    def _fetch(self, offset: int, data: memoryview) -> bool:
        """Fill a buffer; False if that is not to be."""
        transfer, done = self._transfer, 0
        attempts = RetryState(transfer.retry, self._over)
        while done < len(data):
            before = done
            try:
                with transfer.upstream.read_range(
                    self._file, offset + done, len(data) - done
                ) as fill:
                    if fill is None:
                        return False
                    while done < len(data):
                        if self._over.is_set():
                            return False
                        piece = data[done : done + _BUFFER_BYTES]
                        fill(piece)
                        done += len(piece)
                        transfer.arrived(len(piece))
            except TrainctlError as error:
                if done - before >= min(_BUFFER_BYTES, len(data)):
                    attempts.advanced()
                attempts.failed(error)
        return True


def interrupted_error() -> UserInterrupt:
    """The error of a transfer that was told to stop."""
    return UserInterrupt("mirroring was stopped", "The next apply resumes the transfer.")
