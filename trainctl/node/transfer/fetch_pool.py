"""Fetch parts by many threads: each part is requested from one place after another until one returns it right."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from trainctl.base.listing import CHUNK_BYTES
from trainctl.node.transfer.transfer_units import TransferUnit

_MAX_BATCH_FILES = 128
_MAX_BATCH_BYTES = 4 * 2**20
MIRROR = ""
"""The name of the last place for every part."""

Data = Union[bytes, bytearray, memoryview]
PassOnFn = Callable[[TransferUnit, int, Data], None]
"""Called, by many threads, with unverified bytes of an arriving chunk and their offset in it."""
KeepFn = Callable[[TransferUnit, Data, str], None]
"""Called, by many threads, with a part, its verified bytes, and the place that they came from."""


class FetchResult(NamedTuple):
    """The bytes that came of a part, None if there are none here, and their sha256."""

    data: Optional[Data]
    sha256: str = ""

    @classmethod
    def of(cls, data: Optional[Data]) -> FetchResult:
        """Hash the bytes."""
        return cls(data, "" if data is None else hashlib.sha256(data).hexdigest())


class ChunkBuffer:
    """Memory for a chunk, used again and again: to allocate it costs more than to fill it."""

    def __init__(self) -> None:
        self._data = bytearray()

    def view(self, length: int) -> memoryview:
        """The first bytes of it; overwrites what was there."""
        if not self._data:
            self._data = bytearray(CHUNK_BYTES)
        return memoryview(self._data)[:length]


class Fetcher:
    """Fetches parts from one place, in one thread."""

    def __init__(self, place: str) -> None:
        self.place = place

    def fetch(self, parts: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        """The bytes of each part: one chunk, or several small files. They are valid until the next are requested."""
        raise NotImplementedError

    def reject(self, part: TransferUnit) -> None:
        """Note that the bytes of a part were wrong. Failure if there is no other place to ask."""
        raise NotImplementedError

    def abort(self) -> None:
        """Fail what is under way, from another thread."""

    def close(self) -> None:
        """Close connections and files."""


class FetchTask:
    """A part, and the places that are still to be asked for it."""

    def __init__(self, part: TransferUnit, places: Sequence[str]) -> None:
        self.part = part
        self.places: Deque[str] = deque([*places, MIRROR])


class FetchPool:
    """One round of fetching, with a thread for each fetcher. The first error of any thread ends it and is raised."""

    def __init__(
        self, fetchers: Sequence[Fetcher], keep: KeepFn, pass_on: PassOnFn = lambda *_: None
    ) -> None:
        self._fetchers = fetchers
        self._keep = keep
        self._pass_on = pass_on
        self._changed = threading.Condition()
        self._queues: Dict[str, Deque[FetchTask]] = {fetcher.place: deque() for fetcher in fetchers}
        self._left = 0
        self._error: Optional[Exception] = None

    def run(self, tasks: Sequence[FetchTask]) -> None:
        """Fetch all parts."""
        for task in tasks:
            self._queue(task)
        self._left = len(tasks)
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
        while task.places[0] not in self._queues:
            task.places.popleft()
        self._queues[task.places[0]].append(task)

    def _work(self, fetcher: Fetcher) -> None:
        try:
            while tasks := self._next(fetcher.place):
                found = fetcher.fetch([task.part for task in tasks], self._pass_on)
                for task, fetched in zip(tasks, found):
                    self._settle(fetcher, task, fetched)
        except Exception as error:  # noqa: BLE001 - ``run`` raises it again
            self._fail(error)

    def _next(self, place: str) -> List[FetchTask]:
        """The tasks to do next; none when all are done, or one has failed."""
        queue = self._queues[place]
        with self._changed:
            while not queue and self._left and self._error is None:
                self._changed.wait()
            if self._error is not None or not queue:
                return []
            tasks = [queue.popleft()]
            size = tasks[0].part.file.size
            while tasks[0].part.is_small and queue and queue[0].part.is_small:
                size += queue[0].part.file.size
                if len(tasks) == _MAX_BATCH_FILES or size > _MAX_BATCH_BYTES:
                    break
                tasks.append(queue.popleft())
            return tasks

    def _settle(self, fetcher: Fetcher, task: FetchTask, fetched: FetchResult) -> None:
        is_right = fetched.sha256 == task.part.chunk.sha256
        if fetched.data is not None and is_right:
            self._keep(task.part, fetched.data, fetcher.place)
        elif fetched.data is not None:
            fetcher.reject(task.part)
        with self._changed:
            if is_right:
                self._left -= 1
            else:
                task.places.popleft()
                self._queue(task)
            if not is_right or not self._left:
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        for fetcher in self._fetchers:
            fetcher.abort()
