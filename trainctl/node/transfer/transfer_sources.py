"""Sources of a delivery as its request names them: mirror, shared cache and peers."""

from __future__ import annotations

import hashlib
import time
from itertools import accumulate
from typing import (  # fmt: skip
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
)

from trainctl.base.failure import Failure
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.throughput import RateLimiter
from trainctl.node.system import layout as names
from trainctl.node.transfer.fetch_pool import MIRROR, ChunkBuffer, Fetcher, FetchResult, PassOnFn
from trainctl.node.transfer.object_readers import (
    CacheReader,
    CloneFn,
    DirectoryReader,
    MirrorReader,
    ObjectReader,
)
from trainctl.node.transfer.shared_cache import SHARED, SharedCacheFetcher, open_shared_cache
from trainctl.node.transfer.transfer_units import TransferUnit

if TYPE_CHECKING:
    from trainctl.base.protocol.callbacks import CallbackClient
    from trainctl.node.transfer.http_reader import SignedUrls
    from trainctl.node.transfer.peers import PeerFetcher, PeerSchedule


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
        self._urls: Optional[SignedUrls] = None
        self._schedule: Optional[PeerSchedule] = None
        self._numbers: Dict[str, int] = {}
        self._peers: List[PeerFetcher] = []
        peers = request.get("peers") or []
        rate_limiter = RateLimiter(_parse_rate(request.get("max_rate")))
        self._mirror = MirrorReader(
            self._reader(
                request.get("mirror"), listing, callbacks, rate_limiter, evenly=bool(peers)
            ),
            listing,
        )
        record_mirror_time = self._add_peers(peers, request, listing) if peers else _ignore
        # With peers, a single chunk can be passed on earlier than two that share the mirror's bandwidth.
        # Streams from a bucket are limited by latency instead.
        streams = 1 if peers and self._urls is None else self._mirror.streams
        self.from_mirror = [
            MirrorFetcher(self._mirror, record_mirror_time, early=bool(peers))
            for _ in range(streams)
        ]
        self.shared = open_shared_cache(request)
        from_shared: List[Fetcher] = []
        if self.shared is not None:
            if request.get("lineage"):
                self.shared.refer(names.check_name(request["lineage"], "lineage"), listing)
            from_shared = [SharedCacheFetcher(self.shared), SharedCacheFetcher(self.shared)]
        self.fetchers: List[Fetcher] = [*self.from_mirror, *from_shared, *self._peers]

    def begin(self, batch: Sequence[ListedFile], number: int) -> None:
        """Set the files that are fetched next; ``number`` is that of their first unit."""
        if self._schedule is not None:
            before = accumulate((len(file.chunk_ranges) for file in batch), initial=number)
            self._numbers = {file.sha256: first for file, first in zip(batch, before)}
        if self._urls is not None:
            self._urls.begin(batch)

    def clone(self, file: ListedFile, clone: CloneFn) -> bool:
        """Fill a file by reflink; False if unsupported."""
        try:
            return (self.shared or self._mirror).clone(file, clone)
        except Failure:  # an object is missing; reading it will report that
            return False

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

    def auth_errors(self) -> Dict[str, str]:
        """Errors of peers whose address belongs to another server."""
        return {peer.source_name: peer.auth_error for peer in self._peers if peer.auth_error}

    def close(self) -> None:
        """Close all connections."""
        for fetcher in self.fetchers:
            fetcher.close()
        self._mirror.close()

    def _reader(
        self,
        mirror: Any,
        listing: Listing,
        callbacks: Optional[CallbackClient],
        rate_limiter: RateLimiter,
        *,
        evenly: bool,
    ) -> ObjectReader:
        if not isinstance(mirror, dict) or mirror.get("type") != "objects":
            kind = mirror.get("type") if isinstance(mirror, dict) else None
            raise Failure("request", f"unknown mirror type {kind!r}")
        if mirror.get("is_cache"):
            return CacheReader(mirror["path"], listing, rate_limiter)
        if "path" in mirror:
            return DirectoryReader(mirror["path"], rate_limiter)
        from trainctl.node.transfer.http_reader import (  # slow to import  # fmt: skip
            BucketReader,
            ServerReader,
            SignedUrls,
        )

        if "urls" in mirror:
            return ServerReader(mirror, rate_limiter, evenly=evenly)
        if callbacks is None:
            raise Failure("request", "the mirror is not accessible from this node")
        self._urls = SignedUrls(callbacks)
        return BucketReader(self._urls, rate_limiter)

    def _add_peers(
        self, peers: Sequence[Mapping[str, Any]], request: Mapping[str, Any], listing: Listing
    ) -> Callable[[float], None]:
        from trainctl.node.transfer.peers import (  # slow to import
            PeerFetcher,
            PeerSchedule,
            PeerTimeout,
        )

        me, peer_timeout = str(request.get("node")), PeerTimeout(request.get("patience"))
        holds = {str(peer["node"]): str((peer.get("holds") or {}).get(listing.id, "0")) for peer in peers}  # fmt: skip
        if me not in holds:
            raise Failure("request", f"node {me!r} is missing from its peers")
        try:
            self._schedule = PeerSchedule(listing, me, holds)
        except ValueError:
            raise Failure(
                "request", "invalid holdings of a peer: not a hexadecimal number"
            ) from None
        self._peers = [PeerFetcher(peer, peer_timeout) for peer in peers if str(peer["node"]) != me]
        return peer_timeout.record_mirror_time


class MirrorFetcher(Fetcher):
    """Fetches from the mirror; ``early``: pass chunks on as they arrive."""

    def __init__(
        self, mirror: MirrorReader, record_mirror_time: Callable[[float], None], *, early: bool
    ) -> None:
        super().__init__(MIRROR)
        self._mirror = mirror
        self._record_time = record_mirror_time
        self._early = early
        self._buffer = ChunkBuffer()

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        began = time.monotonic()
        if units[0].is_small:
            blobs = self._mirror.read_small({unit.file.sha256: unit.file.size for unit in units})
            for unit in units:
                yield FetchResult.of(blobs[unit.file.sha256])
            return
        unit, digest, done = units[0], hashlib.sha256(), 0
        view = self._buffer.view(unit.chunk.length)

        def on_bytes(data: memoryview) -> None:
            nonlocal done
            digest.update(data)
            if self._early and unit.file.chunks:
                pass_on(unit, done, data)
            done += len(data)

        self._mirror.read(unit, view, on_bytes)
        self._record_time(time.monotonic() - began)
        yield FetchResult(view, digest.hexdigest())

    def reject(self, unit: TransferUnit) -> None:
        raise Failure(
            "wrong",
            f"{unit.file.path!r} is corrupt in the mirror: digest mismatch",
            f"Blob {unit.file.sha256}, {unit.chunk.length} bytes at {unit.chunk.offset}. Nothing of it was stored. "
            "Repair the mirror, then apply again: trainctl mirror verify --repair",
        )

    def abort(self) -> None:
        self._mirror.abort()


def callback_client(
    request: Mapping[str, Any], caller: BinaryIO, emit: Callable[[Mapping[str, Any]], None]
) -> Optional[CallbackClient]:
    """Client for callbacks if it must provide URLs; else read its input to the end."""
    if {"path", "urls"} & set(request.get("mirror") or {"path": ""}):
        caller.read()
        return None
    from trainctl.base.protocol.callbacks import CallbackClient

    return CallbackClient(caller, emit)


def _parse_rate(value: Any) -> Optional[int]:
    if value is not None and (not isinstance(value, int) or value <= 0):
        raise Failure("request", f"invalid max_rate {value!r}: not a number of bytes per second")
    return value


def _ignore(seconds: float) -> None:
    """Discard the time: there are no peers."""
