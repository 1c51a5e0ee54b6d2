"""Transfer units (chunks and small files), and threads that fetch them from one source after another."""

from __future__ import annotations

import hashlib
import mmap
import threading
from collections import deque
from contextlib import suppress
from typing import (
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Union,
)

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import CHUNK_BYTES, Chunk, ListedFile, Listing
from trainctl.base.network.object_server import MAX_PACKED_BYTES

_BATCH_BYTES = 8 * 2**30
_BATCH_LARGE_FILES = 128
_BATCH_MAX_FILES = 4096
_MAX_BATCH_FILES = 128
_MAX_BATCH_BYTES = 4 * 2**20
MIRROR = ""
"""Name of the last source of every unit."""
SHARED = "shared"
"""Name of the shared cache as a source."""

Data = Union[bytes, bytearray, memoryview]


class TransferUnit(NamedTuple):
    """One chunk of a file; ``number`` counts within the file."""

    file: ListedFile
    number: int
    chunk: Chunk

    @property
    def is_small(self) -> bool:
        """Whether it is a complete small file, which is fetched together with others."""
        return self.chunk.length == self.file.size < MAX_PACKED_BYTES


def units_of(file: ListedFile) -> List[TransferUnit]:
    """Units of a file, in order."""
    return [TransferUnit(file, number, chunk) for number, chunk in enumerate(file.chunk_ranges)]


def unit_lengths(listing: Listing) -> Iterator[int]:
    """Length of each unit of a listing, in order."""
    return (chunk.length for file in listing.unique_files for chunk in file.chunk_ranges)


def batches(files: Iterable[ListedFile]) -> Iterator[List[ListedFile]]:
    """Group the files into batches, which limits the number of open files.

    Batches depend on the listing only, not on what is missing, so that all nodes have the same: none waits in an
    early batch for what another fetches in a later one.
    """
    batch: List[ListedFile] = []
    size = large = 0
    for file in files:
        batch.append(file)
        size += file.size
        large += file.size >= MAX_PACKED_BYTES
        if size >= _BATCH_BYTES or large >= _BATCH_LARGE_FILES or len(batch) >= _BATCH_MAX_FILES:
            yield batch
            batch, size, large = [], 0, 0
    if batch:
        yield batch


def to_hex(present: Iterable[bool]) -> str:
    """Encode a bit per unit as a hex number, lowest bit first."""
    bits = bytearray()
    for number, is_present in enumerate(present):
        if number % 8 == 0:
            bits.append(0)
        bits[-1] |= is_present << number % 8
    return bits[::-1].hex().lstrip("0") or "0"


def from_hex(text: str, count: int) -> bytes:
    """Decode the bits of ``count`` units; ValueError if not a hex number."""
    even = text.zfill(-(-len(text) // 2) * 2)
    return bytes.fromhex(even)[::-1].ljust(-(-count // 8), b"\0")


def has_bit(bits: bytes, number: int) -> bool:
    """Check whether a unit is present."""
    return bool(bits[number >> 3] >> (number & 7) & 1)


PassOnFn = Callable[[TransferUnit, int, Data], None]
"""Receives unverified bytes of a chunk and their offset in it. Called from many threads."""
StoreFn = Callable[[TransferUnit, Data, str], None]
"""Receives a unit, its verified bytes, and the source's name. Called from many threads."""


class FetchResult(NamedTuple):
    """Bytes of a unit and their SHA-256 digest; None if the source doesn't have it."""

    data: Optional[Data]
    sha256: str = ""

    @classmethod
    def of(cls, data: Optional[Data]) -> FetchResult:
        """Hash the bytes."""
        return cls(data, "" if data is None else hashlib.sha256(data).hexdigest())


class Fetcher:
    """Fetches units from one source, in one thread."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name
        self._buffer: Optional[mmap.mmap] = None

    def _view(self, length: int) -> memoryview:
        """View of a page-aligned buffer that is reused: allocating it takes longer than filling it."""
        if self._buffer is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._buffer = mmap.mmap(-1, CHUNK_BYTES, flags=flags)
            with suppress(OSError):  # a kernel without huge pages
                self._buffer.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(self._buffer)[:length]

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        """Fetch one chunk or several small files; results are valid until the next."""
        raise NotImplementedError

    def reject(self, unit: TransferUnit) -> None:
        """Handle a corrupt unit. TrainctlError if there is no other source."""
        raise NotImplementedError

    def abort(self) -> None:
        """Interrupt ``fetch``, from another thread."""

    def close(self) -> None:
        """Close connections and files."""


class FetchTask:
    """A unit, and the sources that have not been tried."""

    def __init__(self, unit: TransferUnit, sources: Sequence[str]) -> None:
        self.unit = unit
        self.sources: Deque[str] = deque([*sources, MIRROR])


class FetchPool:
    """One round of fetching, a thread per fetcher; raises the first error."""

    def __init__(
        self, fetchers: Sequence[Fetcher], store: StoreFn, pass_on: PassOnFn = lambda *_: None
    ) -> None:
        self._fetchers = fetchers
        self._store = store
        self._pass_on = pass_on
        self._changed = threading.Condition()
        self._queues: Dict[str, Deque[FetchTask]] = {
            fetcher.source_name: deque() for fetcher in fetchers
        }
        self._remaining = 0
        self._error: Optional[Exception] = None

    def run(self, tasks: Sequence[FetchTask]) -> None:
        """Fetch the units of all tasks."""
        for task in tasks:
            self._queue(task)
        self._remaining = len(tasks)
        threads = [
            threading.Thread(target=self._work, args=(fetcher,), daemon=True)
            for fetcher in self._fetchers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _queue(self, task: FetchTask) -> None:
        while task.sources[0] not in self._queues:
            task.sources.popleft()
        self._queues[task.sources[0]].append(task)

    def _work(self, fetcher: Fetcher) -> None:
        try:
            while tasks := self._next(fetcher.source_name):
                results = fetcher.fetch([task.unit for task in tasks], self._pass_on)
                for task, result in zip(tasks, results):
                    self._process(fetcher, task, result)
        except Exception as error:  # noqa: BLE001 - raised again by ``run``
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            for other in self._fetchers:
                other.abort()

    def _next(self, source: str) -> List[FetchTask]:
        """Wait for tasks of a source; empty when all are done, or one has failed."""
        queue = self._queues[source]
        with self._changed:
            while not queue and self._remaining and self._error is None:
                self._changed.wait()
            if self._error is not None or not queue:
                return []
            tasks = [queue.popleft()]
            size = tasks[0].unit.file.size
            while tasks[0].unit.is_small and queue and queue[0].unit.is_small:
                size += queue[0].unit.file.size
                if len(tasks) == _MAX_BATCH_FILES or size > _MAX_BATCH_BYTES:
                    break
                tasks.append(queue.popleft())
            return tasks

    def _process(self, fetcher: Fetcher, task: FetchTask, result: FetchResult) -> None:
        is_intact = result.sha256 == task.unit.chunk.sha256
        if result.data is not None and is_intact:
            self._store(task.unit, result.data, fetcher.source_name)
        elif result.data is not None:
            fetcher.reject(task.unit)
        with self._changed:
            if is_intact:
                self._remaining -= 1
            else:
                task.sources.popleft()
                self._queue(task)
            if not is_intact or not self._remaining:
                self._changed.notify_all()
