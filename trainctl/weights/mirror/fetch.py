"""Many files at once: what is there, what is missing, and how far it is."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Callable, Protocol

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import TrainctlError
from trainctl.weights.mirror.announced import may_be
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.layout import Content, fingerprint
from trainctl.weights.mirror.reception import stopped
from trainctl.weights.mirror.records import Records

Progress = Callable[[int, int, int], None]
"""Called with bytes done, bytes in total, and files done; from several threads, never from two at once."""

AT_ONCE = 20_000
"""So many files of a source are brought together: among them what is announced to be the same is asked for once."""
LARGE_FROM_BYTES = 2**20
SMALL_AT_ONCE = 32
"""So many small files are asked for at the same time where a bucket is mirrored into, and where anything is repaired."""
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.1


class Tally:
    """Counts what is done of one source and tells it."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._progress = progress
        self._bytes = 0
        self._files = 0

    def add(self, size: int, files: int = 0) -> None:
        """So many more bytes and files are there."""
        with self._lock:
            self._bytes += size
            self._files += files
            if self._progress is not None:
                self._progress(self._bytes, self._total, self._files)


def by_fingerprint(resolved: ResolvedSource) -> dict[str, list[SourceFile]]:
    """The files, those that are known to be the same content together."""
    groups: dict[str, list[SourceFile]] = {}
    for file in resolved.files:
        groups.setdefault(fingerprint(resolved, file), []).append(file)
    return groups


def parts(resolved: ResolvedSource) -> Iterator[ResolvedSource]:
    """The source in parts of some thousand files, as there may be millions; one that is small is its only part."""
    files = iter(resolved.files)
    while some := tuple(islice(files, AT_ONCE)):
        yield replace(resolved, files=some)


def present(
    contents: Contents, records: Records, groups: Mapping[str, Sequence[SourceFile]]
) -> dict[str, Content]:
    """What the mirror has of a source's files, by their fingerprints; ``records`` are the source's."""
    layout = contents.layout
    small = {key for key, files in groups.items() if files[0].size <= layout.chunk_bytes}
    silent = {key for key in small if groups[key][0].sha256 is None}
    recorded = records.find(silent) if silent else {}
    found: dict[str, Content] = {}
    for key, files in groups.items():
        announced = files[0].sha256
        content = recorded.get(key)
        if key not in small:
            content = layout.known(key)
        elif announced is not None:
            content = Content(announced, files[0].size)
        if content is None or not may_be(files[0], content.sha256, content.size):
            continue
        if contents.has(content.sha256, content.size):
            found[key] = content
    return found


class Bringing(Protocol):
    """Brings single files into a mirror until ``halt`` is set."""

    @property
    def halt(self) -> threading.Event:
        """Ends what is under way, between pieces."""
        ...

    def fetch(self, file: SourceFile, key: str) -> Content:
        """Have the file's content in the mirror, verified, and say what it is; ``key`` is its fingerprint."""
        ...


class Crowd:
    """Works through files with a few threads; the first error ends it for all and is raised.

    Of files above 1 MiB at most ``most_large`` come at a time: each of them may have several connections.
    """

    def __init__(
        self,
        transfer: Bringing,
        tally: Tally,
        missing: Mapping[str, list[SourceFile]],
        most_large: int | None = None,
    ) -> None:
        self._transfer = transfer
        self._large_left = len(missing) if most_large is None else most_large
        self._tally = tally
        self._lock = threading.Lock()
        self._wanted = len(missing)
        self._todo = deque(sorted(missing.items(), key=_size_if_large))
        self._done: dict[str, Content] = {}
        self._error: TrainctlError | None = None

    def run(self, parallelism: int, cancelled: threading.Event) -> dict[str, Content]:
        """Fetch everything; of large ones the largest first, so that none is left for the end, small ones in the order in which they were given."""
        if cancelled.is_set():
            raise stopped()
        count = min(max(1, parallelism), len(self._todo))
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            self._attend(threads, cancelled)
        finally:
            self._halt(threads)
        if self._error is not None:
            raise self._error
        if len(self._done) == self._wanted:
            return self._done
        if cancelled.is_set():
            raise stopped()
        raise RuntimeError("a transfer ended without a result")

    def _attend(self, threads: Sequence[threading.Thread], cancelled: threading.Event) -> None:
        halt = self._transfer.halt
        for thread in threads:
            while thread.is_alive() and not halt.is_set():
                thread.join(_POLL_SECONDS)
                if cancelled.is_set():
                    halt.set()

    def _halt(self, threads: Sequence[threading.Thread]) -> None:
        """Threads that hear nothing from upstream are left behind: they write to names of their own and end by themselves."""
        self._transfer.halt.set()
        until = time.monotonic() + _GRACE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while not self._transfer.halt.is_set():
            taken = self._take()
            if taken is None:
                return
            key, files = taken
            try:
                content = self._transfer.fetch(files[0], key)
            except TrainctlError as error:
                self._fail(error)
                return
            with self._lock:
                self._done[key] = content
                self._large_left += files[0].size > LARGE_FROM_BYTES
            self._tally.add(files[0].size * (len(files) - 1), len(files))

    def _take(self) -> tuple[str, list[SourceFile]] | None:
        """The largest that is left; the next small one while there are enough large ones, and where there is none, nothing."""
        with self._lock:
            if self._todo and self._large_left and _size_if_large(self._todo[-1]):
                self._large_left -= 1
                return self._todo.pop()
            if self._todo and not _size_if_large(self._todo[0]):
                return self._todo.popleft()
            return None

    def _fail(self, error: TrainctlError) -> None:
        with self._lock:
            if not self._transfer.halt.is_set():
                self._error = error
                self._transfer.halt.set()


def _size_if_large(item: tuple[str, list[SourceFile]]) -> int:
    size = item[1][0].size
    return size if size > LARGE_FROM_BYTES else 0
