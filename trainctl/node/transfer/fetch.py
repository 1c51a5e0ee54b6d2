"""Fetch the missing blobs of a listing, batch by batch, from the sources that a request names."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from itertools import accumulate, compress, islice
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
)

from trainctl.base.filesystem.files import list_names
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.throughput import RateLimiter
from trainctl.errors import NodeError
from trainctl.node.system.blob_files import PartialFile
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.fetch_pool import (
    MIRROR,
    SHARED,
    Data,
    Fetcher,
    FetchPool,
    FetchTask,
    TransferUnit,
    batches,
    units_of,
)
from trainctl.node.transfer.object_readers import (
    CacheReader,
    DirectoryReader,
    MirrorFetcher,
    MirrorReader,
    ObjectReader,
)

if TYPE_CHECKING:
    from trainctl.base.protocol.wire import CallbackClient
    from trainctl.node.transfer.http_reader import SignedUrls
    from trainctl.node.transfer.peers import PeerFetcher, PeerSchedule

FetchProgressFn = Callable[[int, int], None]
"""Receives the number of bytes that are present now, and how many of them were transferred."""
NOTHING_MOVED = {"bytes_mirror": 0, "bytes_peers": 0, "bytes_cluster": 0}
"""Bytes by the source that they came from, as in ``DeliverResponse``."""
_POLL_SECONDS = 0.05


class DeliveryFetch:
    """Fetches one delivery. ``moved`` counts the bytes by source."""

    def __init__(self, layout: Layout, sources: TransferSources, progress: FetchProgressFn) -> None:
        self._layout = layout
        self._sources = sources
        self._progress = progress
        self._files = layout.files
        self._lock = threading.Lock()
        self._fetched_to_shared: Set[str] = set()
        self.moved = dict(NOTHING_MOVED)

    def run(self, contents: Iterable[ListedFile], absent: Iterable[int]) -> None:
        """Fetch the blobs flagged in ``absent``, durably and under their final names."""
        self._fetched_to_shared = self._sources.copy_to_shared(lambda: self._progress(0, 0))
        absent, number = iter(absent), 0
        for batch in batches(contents):
            self._sources.begin(batch, number)
            number += sum(len(file.chunk_ranges) for file in batch)
            remaining = list(compress(batch, islice(absent, len(batch))))
            while remaining:
                own: List[ListedFile] = []
                others: List[ListedFile] = []  # being fetched by other processes
                with ExitStack() as locks:
                    for file in remaining:
                        lock = FileLease(self._layout.locks / f"{file.sha256}.lock")
                        if len(file.chunk_ranges) > 1 and not lock.try_acquire():
                            others.append(file)
                        else:
                            locks.callback(lock.release)
                            own.append(file)
                    self._fetch(own)
                remaining = others
                if remaining:
                    time.sleep(_POLL_SECONDS)

    def _fetch(self, files: Sequence[ListedFile]) -> None:
        small = [file for file in files if len(file.chunk_ranges) == 1]
        missing = self._missing_small(small)
        with ExitStack() as opened:
            partials: Dict[str, PartialFile] = {}
            for file in files:
                if len(file.chunk_ranges) == 1:
                    continue
                if self._files.is_intact(file):  # the process that held the lock has fetched it
                    self._progress(file.size, 0)
                else:
                    # peers read chunks from the page cache
                    partial = PartialFile(self._files, file, direct=not self._sources.peers)
                    partials[file.sha256] = opened.enter_context(closing(partial))
                    missing += self._missing_chunks(partial, file)

            def store(unit: TransferUnit, data: Data, source: str) -> None:
                partial = partials.get(unit.file.sha256)
                if partial is None:
                    self._files.write_small(unit.file, data)
                elif partial.write(unit.number, data):
                    self._finish(partial, unit.file)
                self._count(len(data), self._tier(unit.file, source))

            def pass_on(unit: TransferUnit, start: int, data: Data) -> None:
                partials[unit.file.sha256].write_unverified(unit.number, start, data)

            missing.sort(key=self._sources.is_late)
            tasks = [FetchTask(unit, self._sources.sources(unit)) for unit in missing]
            FetchPool(self._sources.fetchers, store, pass_on).run(tasks)
        self._files.commit(small)

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
        reader = self._sources.shared or self._sources.mirror
        is_cloned = partial.is_new and reader.clone(file, partial.clone)
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
        if source == SHARED and file.sha256 not in self._fetched_to_shared:
            return "bytes_cluster"
        return "bytes_mirror" if source in (MIRROR, SHARED) else "bytes_peers"

    def _count(self, length: int, tier: str) -> None:
        with self._lock:
            self.moved[tier] += length
            self._progress(length, length)


class TransferSources:
    """Fetchers for the sources that a request names.

    ``callbacks`` provides presigned URLs if the mirror is in a bucket.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        listing: Listing,
        callbacks: Optional[CallbackClient] = None,
    ) -> None:
        self._request = request
        self._listing = listing
        self._urls: Optional[SignedUrls] = None
        self._schedule: Optional[PeerSchedule] = None
        self._numbers: Dict[str, int] = {}
        self.peers: List[PeerFetcher] = []
        peers, rate = request.get("peers") or [], request.get("max_rate")
        if rate is not None and (not isinstance(rate, int) or rate <= 0):
            raise NodeError(f"invalid max_rate {rate!r}: not a number of bytes per second")
        self.mirror = MirrorReader(self._reader(callbacks, RateLimiter(rate)), listing)
        record_mirror_time = self._add_peers(peers) if peers else lambda _: None
        # With peers, a single chunk can be passed on earlier than two that share the mirror's bandwidth.
        # Streams from a bucket are limited by latency instead.
        streams = 1 if peers and self._urls is None else self.mirror.streams
        self.fetchers: List[Fetcher] = [
            *(
                MirrorFetcher(self.mirror, record_mirror_time, early=bool(peers))
                for _ in range(streams)
            ),
            *self.peers,
        ]
        self.shared: Optional[MirrorReader] = None
        """Reader of the shared cache, if it has the listing."""

    def copy_to_shared(self, heartbeat: Callable[[], None]) -> Set[str]:
        """Copy the listing to the shared cache, if there is one; digests of the files copied by this call."""
        if not self._request.get("shared"):
            return set()
        from trainctl.node.transfer.shared_cache import (  # slow to import
            SharedCache,
            SharedCacheFetcher,
        )

        if self._urls is not None:
            self._urls.begin(self._listing.unique_files)
        shared = SharedCache(self._request["shared"])
        copied = shared.copy(self._request["lineage"], self._listing, self.mirror, heartbeat)
        if copied is None:
            return set()
        self.shared = MirrorReader(DirectoryReader(str(shared.root)), self._listing)
        self.fetchers += [
            SharedCacheFetcher(shared, self.shared, self._listing)
            for _ in range(self.shared.streams)
        ]
        return copied

    def begin(self, batch: Sequence[ListedFile], number: int) -> None:
        """Set the files that are fetched next; ``number`` is that of their first unit."""
        if self._schedule is not None:
            before = accumulate((len(file.chunk_ranges) for file in batch), initial=number)
            self._numbers = {file.sha256: first for file, first in zip(batch, before)}
        if self._urls is not None:
            self._urls.begin(batch)

    def sources(self, unit: TransferUnit) -> List[str]:
        """Sources to ask for a unit before the mirror."""
        if self.shared is not None:
            return [SHARED]
        if self._schedule is None:
            return []
        return self._schedule.sources(self._number(unit))

    def is_late(self, unit: TransferUnit) -> bool:
        """Whether the first peer to ask for a unit will have to receive it itself."""
        return self._schedule is not None and self._schedule.is_late(self._number(unit))

    def _number(self, unit: TransferUnit) -> int:
        return self._numbers[unit.file.sha256] + unit.number

    def close(self) -> None:
        """Close all connections."""
        for fetcher in self.fetchers:
            fetcher.close()
        self.mirror.close()

    def _reader(
        self, callbacks: Optional[CallbackClient], rate_limiter: RateLimiter
    ) -> ObjectReader:
        mirror = self._request["mirror"]
        if mirror.get("is_cache"):
            return CacheReader(mirror["path"], self._listing, rate_limiter)
        if "path" in mirror:
            return DirectoryReader(mirror["path"], rate_limiter)
        from trainctl.node.transfer.http_reader import (  # slow to import  # fmt: skip
            BucketReader,
            ServerReader,
            SignedUrls,
        )

        if "urls" in mirror:
            return ServerReader(mirror, rate_limiter, evenly=bool(self._request.get("peers")))
        if callbacks is None:
            raise NodeError("the mirror is not accessible from this node")
        self._urls = SignedUrls(callbacks)
        return BucketReader(self._urls, rate_limiter)

    def _add_peers(self, peers: Sequence[Mapping[str, Any]]) -> Callable[[float], None]:
        from trainctl.node.transfer.peers import (  # slow to import
            PeerFetcher,
            PeerSchedule,
            PeerTimeout,
        )

        me, listing = str(self._request.get("node")), self._listing
        peer_timeout = PeerTimeout(self._request.get("patience"))
        holds = {str(peer["node"]): str((peer.get("holds") or {}).get(listing.id, "0")) for peer in peers}  # fmt: skip
        if me not in holds:
            raise NodeError(f"node {me!r} is missing from its peers")
        try:
            self._schedule = PeerSchedule(listing, me, holds)
        except ValueError:
            raise NodeError("invalid holdings of a peer: not a hexadecimal number") from None
        self.peers = [PeerFetcher(peer, peer_timeout) for peer in peers if str(peer["node"]) != me]
        return peer_timeout.record_mirror_time


def callback_client(
    request: Mapping[str, Any], caller: BinaryIO, emit: Callable[[Mapping[str, Any]], None]
) -> Optional[CallbackClient]:
    """Client for callbacks if it must provide URLs; else read its input to the end."""
    if {"path", "urls"} & set(request["mirror"]):
        caller.read()
        return None
    from trainctl.base.protocol.wire import CallbackClient

    return CallbackClient(caller, emit)
