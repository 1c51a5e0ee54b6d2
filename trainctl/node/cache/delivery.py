"""Make a listing present on this node, in the order of DESIGN.md, invariant 7."""

from __future__ import annotations

import contextlib
import time
from contextlib import closing
from itertools import compress
from typing import TYPE_CHECKING, Any, BinaryIO, Mapping, Optional, cast

from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease, remove_stale_leases
from trainctl.base.listing import Listing
from trainctl.base.protocol.weights import DeliverRequest, DeliverResponse
from trainctl.base.protocol.wire import Emit
from trainctl.errors import TrainctlError
from trainctl.node.cache.disk_space import cache_limit, make_space
from trainctl.node.cache.holds import CacheHolds, reserve_listing
from trainctl.node.cache.listings import (
    MAX_CHECKED_FILES,
    CacheReferences,
    ListingTrees,
    receive_listings,
)
from trainctl.node.runs.mount import mount_problem
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.transfer.fetch import (
    NOTHING_MOVED,
    DeliveryFetch,
    TransferSources,
    callback_client,
)

if TYPE_CHECKING:
    from trainctl.base.protocol.wire import CallbackClient

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
        moved = copy_listing(layout, listing, request, emit, callbacks)
    except (TrainctlError, OSError):
        CacheHolds(layout).release_listing(lease, listing.id)
        raise
    response = {
        "listing": listing.id,
        "tree": str(layout.tree(listing.id)),
        "bytes_node": listing.size - sum(moved.values()),
        "seconds": round(time.monotonic() - began, 6),
        **moved,
    }
    return cast("DeliverResponse", response)


def copy_listing(
    layout: Layout,
    listing: Listing,
    request: Mapping[str, Any],
    emit: Emit = lambda _: None,
    callbacks: Optional[CallbackClient] = None,
) -> Mapping[str, int]:
    """Complete a listing's tree, from a directory and peers if there is no client; bytes by source.

    Retries if another lineage's garbage collection removed files meanwhile.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _deliver(layout, listing, request, emit, callbacks)
    return _deliver(layout, listing, request, emit, callbacks)


def _deliver(
    layout: Layout,
    listing: Listing,
    request: Mapping[str, Any],
    emit: Emit,
    callbacks: Optional[CallbackClient],
) -> Mapping[str, int]:
    """Write reference and hold, so that no collection removes what the cache has; fetch the rest."""
    trees, references = ListingTrees(layout), CacheReferences(layout)
    lineage, owner = request["lineage"], str(request.get("owner", ""))
    lease = str(request.get("lease") or "")
    references.refer(lineage, listing, owner)
    if lease:
        CacheHolds(layout).acquire(lease, listing.id, lineage)
    for directory in (layout.partial, layout.locks, layout.trees, layout.completion_markers):
        make_directory(directory)
    large = len(listing.files) > MAX_CHECKED_FILES
    thoroughly = bool(request.get("verify") or (large and mount_problem(layout.partial)))
    if trees.is_intact(listing, thoroughly=thoroughly):
        remove_stale_leases(layout.locks)
        return NOTHING_MOVED
    with FileLease(layout.locks / f"listing-{listing.id}.lock"):
        trees.restore_marker(listing.id)
        if trees.is_intact(listing, thoroughly=thoroughly):
            return NOTHING_MOVED
        references.refer(lineage, listing, owner)
        with closing(TransferSources(request, listing, callbacks)) as sources:
            limit = cache_limit(request)
            try:
                with reserve_listing(layout, listing):
                    trees.adopt(listing)
                    moved = _fetch_missing(layout, listing, sources, emit, limit, lease)
                    trees.build(listing, str(request.get("source", "")))
                    return moved
            finally:
                for peer in sorted(sources.peers, key=lambda peer: peer.source_name):
                    if peer.auth_error:
                        emit({"log": f"skipped {peer.source_name}: {peer.auth_error}"})


def _fetch_missing(
    layout: Layout,
    listing: Listing,
    sources: TransferSources,
    emit: Emit,
    limit: Optional[int],
    lease: str,
) -> Mapping[str, int]:
    """Free space and fetch missing blobs; bytes fetched, by source."""
    contents = listing.unique_files
    absent = bytearray(not layout.files.is_intact(file) for file in contents)
    if not any(absent):
        return NOTHING_MOVED
    make_space(layout, listing, limit, lease)
    total = sum(file.size for file in contents)
    done = total - sum(file.size for file in compress(contents, absent))
    received, reported_at = 0, 0.0

    def report(present: int, transferred: int) -> None:
        nonlocal done, received, reported_at
        done += present
        received += transferred
        now = time.monotonic()
        if now - reported_at >= _EVENT_SECONDS or done >= total:
            reported_at = now
            emit({"done": done, "received": received, "total": total, "files": len(contents)})

    report(0, 0)
    fetch = DeliveryFetch(layout, sources, report)
    fetch.run(contents, absent)
    return fetch.moved
