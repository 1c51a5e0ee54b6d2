"""A large file by several connections: each brings a chunk at a time, hashes it and writes it; they are handed on in order.

How far they may be ahead of the one whose turn it is, is how many buffers there are: memory is the same for any size.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from trainctl.base.retry import Attempts, Retry
from trainctl.errors import TrainctlError
from trainctl.spi.sources import Fill, Span

PARTS_FROM_BYTES = 64 * 2**20
"""Below this size there is no chunk for each connection."""
_CONNECTIONS = 4
_PIECE = 2**20
_POLL_SECONDS = 0.1


class Buffers:
    """Memory for so many chunks, which the files of a mirror share; made when it is first needed."""

    def __init__(self, count: int, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._free: list[bytearray] = []
        self._room = threading.Semaphore(count)

    def take(self, given_up: threading.Event) -> bytearray | None:
        """A buffer, as soon as there is one; None when it is given up."""
        while not given_up.is_set():
            if self._room.acquire(timeout=_POLL_SECONDS):
                return self._free.pop() if self._free else bytearray(self.chunk_bytes)
        return None

    def give_back(self, buffer: bytearray) -> None:
        """Others may have it."""
        self._free.append(buffer)
        self._room.release()


@dataclass(frozen=True)
class Asking:
    """What is wanted: bytes of a file of ``size``, by ``part`` as in PartSource, into ``write`` at their offsets.

    ``arrived`` hears of every piece, in bytes; ``halt`` ends it between pieces. All may be called from several threads.
    """

    part: Callable[[Span], AbstractContextManager[Fill | None]]
    write: Callable[[int, memoryview], None]
    size: int
    retry: Retry
    halt: threading.Event
    arrived: Callable[[int], None]


class _Arrived(NamedTuple):
    buffer: bytearray
    size: int
    digest: str


class Convoy:
    """``with closing(Convoy(…)) as convoy``: iterate over the chunks from an offset on, in order, each with its sha256.

    They are written when they are handed on; a chunk is there until the next is asked for. The iteration ends early where
    upstream sends whole files only and where it is halted, and raises what a connection was given up for.
    """

    def __init__(self, asking: Asking, buffers: Buffers, offset: int) -> None:
        self._asking = asking
        self._buffers = buffers
        self._handed_on = self._asked_for = offset
        self._arrived: dict[int, _Arrived] = {}
        self._ahead = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name="part", daemon=True)
            for _ in range(_CONNECTIONS)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the connections; who writes must have ended before what is written to is closed."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for one in self._arrived.values():
            self._buffers.give_back(one.buffer)
        self._asking.arrived(-self._ahead)

    def __iter__(self) -> Iterator[tuple[memoryview, str]]:
        while self._handed_on < self._asking.size:
            found = self._await()
            if found is None:
                return
            try:
                yield memoryview(found.buffer)[: found.size], found.digest
            finally:
                self._buffers.give_back(found.buffer)
            self._handed_on += found.size

    def _await(self) -> _Arrived | None:
        """The chunk whose turn it is, when it is there."""
        with self._changed:
            while self._handed_on not in self._arrived:
                if self._error is not None:
                    raise self._error
                if self._over.is_set() or self._asking.halt.is_set():
                    return None
                self._changed.wait(_POLL_SECONDS)
            found = self._arrived.pop(self._handed_on)
            self._ahead -= found.size
            return found

    def _work(self) -> None:
        try:
            while self._bring_next():
                pass
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits must hear of it
            with self._changed:
                if not self._over.is_set():
                    self._error = error
                self._over.set()
                self._changed.notify_all()

    def _bring_next(self) -> bool:
        """Bring the next chunk that nobody brings; whether there may be more."""
        with self._turn:
            offset = self._asked_for
            buffer = self._buffers.take(self._over) if offset < self._asking.size else None
            if buffer is None:
                return False
            size = min(len(buffer), self._asking.size - offset)
            self._asked_for += size
        digest = None
        try:
            digest = self._bring(offset, memoryview(buffer)[:size])
        finally:
            if digest is None:
                self._buffers.give_back(buffer)
        with self._changed:
            if digest is None:
                self._over.set()
            else:
                self._arrived[offset] = _Arrived(buffer, size, digest)
            self._changed.notify_all()
        return digest is not None

    def _bring(self, offset: int, chunk: memoryview) -> str | None:
        """The chunk's digest when it is here and written; None where that is not to be."""
        attempts = Attempts(self._asking.retry, self._over)
        found = hashlib.sha256()
        done = 0
        while done < len(chunk):
            before = done
            try:
                with self._asking.part(Span(offset + done, len(chunk) - done)) as fill:
                    if fill is None:
                        return None
                    while done < len(chunk):
                        if self._over.is_set():
                            return None
                        piece = chunk[done : done + _PIECE]
                        fill(piece)
                        done += len(piece)
                        self._count(len(piece))
            except TrainctlError as error:
                if done - before >= min(_PIECE, len(chunk)):
                    attempts.advanced()
                attempts.failed(error)
        self._asking.write(offset, chunk)
        found.update(chunk)
        return found.hexdigest()

    def _count(self, size: int) -> None:
        with self._changed:
            self._ahead += size
        self._asking.arrived(size)
