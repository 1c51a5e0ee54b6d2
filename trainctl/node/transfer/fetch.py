"""Fetch the missing contents of a listing, window by window, from the places that a request names."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from itertools import compress, islice
from typing import Callable, Dict, Iterable, List, Sequence, Set

from trainctl.base.filesystem.files import list_names
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile
from trainctl.node.system.blob_files import PartialFile
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.fetch_pool import MIRROR, Data, FetchPool, FetchTask
from trainctl.node.transfer.shared_cache import SHARED
from trainctl.node.transfer.transfer_sources import TransferSources
from trainctl.node.transfer.transfer_units import TransferUnit, units_of, windows

FetchProgressFn = Callable[[int, int], None]
"""Takes how many more bytes are here now, and how many of them had to come."""
PEERS = "peers"
_POLL_SECONDS = 0.05


class DeliveryFetch:
    """One delivery's fetching. ``moved`` counts the bytes that came from the MIRROR, from PEERS and from the SHARED cache."""

    def __init__(self, layout: Layout, sources: TransferSources, progress: FetchProgressFn) -> None:
        self._layout = layout
        self._sources = sources
        self._progress = progress
        self._files = layout.files
        self._lock = threading.Lock()
        self._shared_by_us: Set[str] = set()
        self.moved: Dict[str, int] = {}

    def run(self, contents: Iterable[ListedFile], absent: Iterable[int]) -> None:
        """Have those of a listing's contents that are ``absent``, a flag for each, here: under their final names and durable."""
        absent, number = iter(absent), 0
        for window in windows(contents):
            self._sources.begin(window, number)
            number += sum(len(file.chunk_ranges) for file in window)
            left = list(compress(window, islice(absent, len(window))))
            while left:
                left = self._fetch_unlocked(window, left)
                if left:
                    time.sleep(_POLL_SECONDS)

    def _fetch_unlocked(
        self, window: Sequence[ListedFile], files: List[ListedFile]
    ) -> List[ListedFile]:
        """Fetch those that no other process is fetching; the others. No process waits for a lock while it holds one."""
        mine: List[ListedFile] = []
        others: List[ListedFile] = []
        with ExitStack() as held:
            for file in files:
                lock = FileLease(self._layout.locks / f"{file.sha256}.lock")
                if len(file.chunk_ranges) == 1:
                    mine.append(file)
                elif not lock.try_acquire():
                    others.append(file)
                else:
                    held.callback(lock.release)
                    mine.append(file)
            self._share(window, mine)
            self._fetch(mine)
        return others

    def _share(self, window: Sequence[ListedFile], files: Sequence[ListedFile]) -> None:
        """Have the contents in the shared cache first, if there is one."""
        shared = self._sources.shared
        if shared is not None:
            self._shared_by_us |= shared.fetch_missing(
                window,
                {file.sha256 for file in files},
                self._sources.from_mirror,
                lambda: self._progress(0, 0),
            )

    def _fetch(self, files: Sequence[ListedFile]) -> None:
        small = [file for file in files if len(file.chunk_ranges) == 1]
        missing = self._missing_small(small)
        with ExitStack() as opened:
            partials: Dict[str, PartialFile] = {}
            for file in files:
                if len(file.chunk_ranges) > 1 and not self._is_fetched_meanwhile(file):
                    partial = opened.enter_context(closing(PartialFile(self._files, file)))
                    partials[file.sha256] = partial
                    missing += self._missing_chunks(partial, file)

            def keep(part: TransferUnit, data: Data, place: str) -> None:
                if part.file.sha256 in partials:
                    if partials[part.file.sha256].write(part.number, data):
                        self._finish(partials[part.file.sha256], part.file)
                else:
                    self._files.keep_small(part.file, data)
                self._count(len(data), self._tier(part.file, place))

            def pass_on(part: TransferUnit, start: int, data: Data) -> None:
                partials[part.file.sha256].pass_on(part.number, start, data)

            tasks = [FetchTask(part, self._sources.places(part)) for part in missing]
            FetchPool(self._sources.fetchers, keep, pass_on).run(tasks)
        self._files.commit(small)

    def _is_fetched_meanwhile(self, file: ListedFile) -> bool:
        """Whether the process that held the lock has fetched it."""
        if not self._files.is_whole(file):
            return False
        self._progress(file.size, 0)
        return True

    def _missing_small(self, files: Sequence[ListedFile]) -> List[TransferUnit]:
        known = set(list_names(self._layout.partial)) if files else set()
        wanted: List[TransferUnit] = []
        for file in files:
            if f"{file.sha256}.part" in known and self._files.is_kept(file):
                self._progress(file.size, 0)
            else:
                wanted += units_of(file)
        return wanted

    def _missing_chunks(self, partial: PartialFile, file: ListedFile) -> List[TransferUnit]:
        is_cloned = partial.is_new and self._sources.clone(file, partial.clone)
        parts = units_of(file)
        missing = [parts[index] for index in partial.missing()]
        here = file.size - sum(part.chunk.length for part in missing)
        if is_cloned:
            self._count(here, self._tier(file, SHARED if self._sources.shared else MIRROR))
        else:
            self._progress(here, 0)
        if not missing:
            self._finish(partial, file)
        return missing

    def _finish(self, partial: PartialFile, file: ListedFile) -> None:
        partial.complete()
        self._files.finish(file)

    def _tier(self, file: ListedFile, place: str) -> str:
        """Where bytes count as found: those that this node fetched into the shared cache came from the mirror."""
        if place == SHARED:
            return MIRROR if file.sha256 in self._shared_by_us else SHARED
        return MIRROR if place == MIRROR else PEERS

    def _count(self, length: int, tier: str) -> None:
        with self._lock:
            self.moved[tier] = self.moved.get(tier, 0) + length
            self._progress(length, length)
