"""Fetch the missing blobs of a listing, batch by batch."""

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
from trainctl.node.transfer.transfer_units import TransferUnit, batches, units_of

FetchProgressFn = Callable[[int, int], None]
"""Receives the number of bytes that are present now, and how many of them were transferred."""
PEERS = "peers"
_POLL_SECONDS = 0.05


class DeliveryFetch:
    """Fetches one delivery. ``moved`` counts the bytes from MIRROR, PEERS and SHARED."""

    def __init__(self, layout: Layout, sources: TransferSources, progress: FetchProgressFn) -> None:
        self._layout = layout
        self._sources = sources
        self._progress = progress
        self._files = layout.files
        self._lock = threading.Lock()
        self._fetched_to_shared: Set[str] = set()
        self.moved: Dict[str, int] = {}

    def run(self, contents: Iterable[ListedFile], absent: Iterable[int]) -> None:
        """Fetch the blobs flagged in ``absent``, durably and under their final names."""
        absent, number = iter(absent), 0
        for batch in batches(contents):
            self._sources.begin(batch, number)
            number += sum(len(file.chunk_ranges) for file in batch)
            remaining = list(compress(batch, islice(absent, len(batch))))
            while remaining:
                remaining = self._fetch_unclaimed(batch, remaining)
                if remaining:
                    time.sleep(_POLL_SECONDS)

    def _fetch_unclaimed(
        self, batch: Sequence[ListedFile], files: List[ListedFile]
    ) -> List[ListedFile]:
        """Fetch files that no other process fetches, and return the others."""
        own: List[ListedFile] = []
        others: List[ListedFile] = []
        with ExitStack() as locks:
            for file in files:
                lock = FileLease(self._layout.locks / f"{file.sha256}.lock")
                if len(file.chunk_ranges) == 1:
                    own.append(file)
                elif not lock.try_acquire():
                    others.append(file)
                else:
                    locks.callback(lock.release)
                    own.append(file)
            self._fetch_to_shared(batch, own)
            self._fetch(own)
        return others

    def _fetch_to_shared(self, batch: Sequence[ListedFile], files: Sequence[ListedFile]) -> None:
        """Fetch the blobs to the shared cache first, if there is one."""
        shared = self._sources.shared
        if shared is not None:
            self._fetched_to_shared |= shared.fetch_missing(
                batch,
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

            def store(unit: TransferUnit, data: Data, source: str) -> None:
                if unit.file.sha256 in partials:
                    if partials[unit.file.sha256].write(unit.number, data):
                        self._finish(partials[unit.file.sha256], unit.file)
                else:
                    self._files.write_small(unit.file, data)
                self._count(len(data), self._tier(unit.file, source))

            def pass_on(unit: TransferUnit, start: int, data: Data) -> None:
                partials[unit.file.sha256].write_unverified(unit.number, start, data)

            missing.sort(key=self._sources.is_late)
            tasks = [FetchTask(unit, self._sources.sources(unit)) for unit in missing]
            FetchPool(self._sources.fetchers, store, pass_on).run(tasks)
        self._files.commit(small)

    def _is_fetched_meanwhile(self, file: ListedFile) -> bool:
        """Check whether the process that held the lock has fetched the file."""
        if not self._files.is_intact(file):
            return False
        self._progress(file.size, 0)
        return True

    def _missing_small(self, files: Sequence[ListedFile]) -> List[TransferUnit]:
        stored = set(list_names(self._layout.partial)) if files else set()
        missing: List[TransferUnit] = []
        for file in files:
            if f"{file.sha256}.part" in stored and self._files.has_verified_part(file):
                self._progress(file.size, 0)
            else:
                missing += units_of(file)
        return missing

    def _missing_chunks(self, partial: PartialFile, file: ListedFile) -> List[TransferUnit]:
        is_cloned = partial.is_new and self._sources.clone(file, partial.clone)
        units = units_of(file)
        missing = [units[index] for index in partial.missing()]
        present = file.size - sum(unit.chunk.length for unit in missing)
        if is_cloned:
            self._count(present, self._tier(file, SHARED if self._sources.shared else MIRROR))
        else:
            self._progress(present, 0)
        if not missing:
            self._finish(partial, file)
        return missing

    def _finish(self, partial: PartialFile, file: ListedFile) -> None:
        partial.complete()
        self._files.finish(file)

    def _tier(self, file: ListedFile, source: str) -> str:
        """Source to count bytes for; shared bytes fetched here came from the mirror."""
        if source == SHARED:
            return MIRROR if file.sha256 in self._fetched_to_shared else SHARED
        return MIRROR if source == MIRROR else PEERS

    def _count(self, length: int, tier: str) -> None:
        with self._lock:
            self.moved[tier] = self.moved.get(tier, 0) + length
            self._progress(length, length)
