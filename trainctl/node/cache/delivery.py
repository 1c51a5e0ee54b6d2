"""Make a listing present on this node, in the order of DESIGN.md, invariant 7."""

from __future__ import annotations

import contextlib
import time
from contextlib import closing
from itertools import compress
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Mapping, Optional

from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease, remove_stale_leases
from trainctl.base.listing import Listing
from trainctl.base.protocol.weights import DeliverRequest, DeliverResponse
from trainctl.errors import TrainctlError
from trainctl.node.cache.disk_space import cache_limit, make_space
from trainctl.node.cache.holds import CacheHolds, reserve_listing
from trainctl.node.cache.listings import (
    MAX_CHECKED_FILES,
    CacheReferences,
    ListingTrees,
    receive_listings,
)
from trainctl.node.runs.mount import private_mounts
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.transfer.fetch import PEERS, DeliveryFetch, TransferSources, callback_client
from trainctl.node.transfer.fetch_pool import MIRROR, SHARED

if TYPE_CHECKING:
    from trainctl.base.protocol.wire import CallbackClient

Emit = Callable[[Mapping[str, Any]], None]
_ATTEMPTS = 3
_EVENT_SECONDS = 0.2


def deliver(request: DeliverRequest, emit: Emit, caller: BinaryIO) -> DeliverResponse:
    """Fetch the listing's missing blobs and complete its tree."""
    began = time.monotonic()
    layout = layout_of(request)
    (listing,) = receive_listings([request["listing"]], caller)
    callbacks = callback_client(request, caller, emit)
    emit = callbacks.send if callbacks else emit
    names.check_name(request["lineage"], "lineage")
    lease = names.check_name(request["lease"], "lease") if request.get("lease") else ""
    try:
        moved = _deliver_with_retries(layout, listing, request, emit, callbacks)
    except (TrainctlError, OSError):
        CacheHolds(layout).release_listing(lease, listing.id)
        raise
    return {
        "listing": listing.id,
        "tree": str(layout.tree(listing.id)),
        "bytes_node": listing.size - sum(moved.values()),
        "bytes_mirror": moved.get(MIRROR, 0),
        "bytes_peers": moved.get(PEERS, 0),
        "bytes_cluster": moved.get(SHARED, 0),
        "seconds": round(time.monotonic() - began, 6),
    }


def copy_listing(layout: Layout, listing: Listing, request: Mapping[str, Any]) -> Mapping[str, int]:
    """Complete a listing's tree without a client, from a directory and peers; bytes by source."""
    return _deliver_with_retries(layout, listing, request, lambda _: None, None)


def _deliver_with_retries(
    layout: Layout,
    listing: Listing,
    request: Mapping[str, Any],
    emit: Emit,
    callbacks: Optional[CallbackClient],
) -> Dict[str, int]:
    """Retry if another lineage's garbage collection removed files meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            _refer(layout, listing, request)
            return _deliver(layout, listing, request, emit, callbacks)
    _refer(layout, listing, request)
    return _deliver(layout, listing, request, emit, callbacks)


def _refer(layout: Layout, listing: Listing, request: Mapping[str, Any]) -> None:
    """Write reference and hold, so that no collection removes what the cache has."""
    lineage = request["lineage"]
    CacheReferences(layout).refer(lineage, listing, str(request.get("owner", "")))
    if request.get("lease"):
        CacheHolds(layout).acquire(request["lease"], listing.id, lineage)
    for directory in (layout.partial, layout.locks, layout.trees, layout.completion_markers):
        make_directory(directory)


def _deliver(
    layout: Layout,
    listing: Listing,
    request: Mapping[str, Any],
    emit: Emit,
    callbacks: Optional[CallbackClient],
) -> Dict[str, int]:
    """Fetch if the tree is not intact; bytes fetched, by source."""
    trees = ListingTrees(layout)
    large = len(listing.files) > MAX_CHECKED_FILES
    thoroughly = bool(request.get("verify")) or (
        large and not private_mounts(layout.partial).possible
    )
    if trees.is_intact(listing, thoroughly=thoroughly):
        remove_stale_leases(layout.locks)
        return {}
    with FileLease(layout.locks / f"listing-{listing.id}.lock"):
        trees.restore_marker(listing.id)
        if trees.is_intact(listing, thoroughly=thoroughly):
            return {}
        CacheReferences(layout).refer(request["lineage"], listing, str(request.get("owner", "")))
        with closing(TransferSources(request, listing, callbacks)) as sources:
            lease = str(request.get("lease") or "")
            task = DeliveryTask(layout, listing, sources, emit, cache_limit(request), lease)
            try:
                return task.run(str(request.get("source", "")))
            finally:
                for peer, reason in sorted(sources.auth_errors().items()):
                    emit({"log": f"skipped {peer}: {reason}"})


class DeliveryTask:
    """Fetch one listing and build its tree. The caller holds the listing's lock."""

    def __init__(
        self,
        layout: Layout,
        listing: Listing,
        sources: TransferSources,
        emit: Emit,
        limit: Optional[int],
        lease: str,
    ) -> None:
        self._layout = layout
        self._listing = listing
        self._sources = sources
        self._emit = emit
        self._limit = limit
        self._lease = lease
        self._moved: Dict[str, int] = {}
        self._done = self._received = 0
        self._reported_at = 0.0

    def run(self, source: str) -> Dict[str, int]:
        """Free space, fetch missing blobs, build the tree; bytes fetched, by source."""
        trees = ListingTrees(self._layout)
        with reserve_listing(self._layout, self._listing):
            trees.adopt(self._listing)
            self._fetch_missing()
            trees.build(self._listing, source)
        return self._moved

    def _fetch_missing(self) -> None:
        contents = self._listing.unique_files
        absent = bytearray(not self._layout.files.is_intact(file) for file in contents)
        if not any(absent):
            return
        make_space(self._layout, self._listing, self._limit, self._lease)
        total = sum(file.size for file in contents)
        self._done = total - sum(file.size for file in compress(contents, absent))
        report = self._progress(total, len(contents))
        report(0, 0)
        fetch = DeliveryFetch(self._layout, self._sources, report)
        try:
            fetch.run(contents, absent)
        finally:
            for place, count in fetch.moved.items():
                self._moved[place] = self._moved.get(place, 0) + count

    def _progress(self, total: int, count: int) -> Callable[[int, int], None]:
        def report(done: int, received: int) -> None:
            self._done += done
            self._received += received
            now = time.monotonic()
            if now - self._reported_at >= _EVENT_SECONDS or self._done >= total:
                self._reported_at = now
                progress = {"done": self._done, "received": self._received}
                self._emit({**progress, "total": total, "files": count})

        return report
