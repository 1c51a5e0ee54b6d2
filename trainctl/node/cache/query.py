"""Which weights are here already, and how much more could come. Writes nothing, and needs nothing that delivers."""

from __future__ import annotations

from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.node.cache.disk_space import available_space, cache_limit, leased_blobs
from trainctl.node.cache.leases import CacheLeases
from trainctl.node.cache.trees import ListingTrees
from trainctl.node.system import layout as names
from trainctl.node.system.layout import layout_of


def cache_query(request: CacheQueryRequest) -> CacheQueryResponse:
    """Which of the listings and blobs are complete here, judging by seals and names, and how much more could come."""
    layout = layout_of(request)
    trees = ListingTrees(layout)
    listings = [names.check_sha256(listing, "listing") for listing in request.get("listings", [])]
    blobs = [names.check_sha256(blob, "blob") for blob in request.get("blobs", [])]
    found: CacheQueryResponse = {
        "trees": [listing for listing in listings if trees.is_complete(listing)],
        "blobs": [blob for blob in blobs if layout.files.has(blob)],
    }
    if request.get("room"):
        leased = set(leased_blobs(layout))
        found["room"], found["most"] = available_space(layout, cache_limit(request), leased)
        found["leases"] = sorted(CacheLeases(layout).live())
        found["leased"] = [blob for blob in blobs if blob in leased]
    if request.get("shared"):
        from trainctl.node.transfer.shared_cache import open_shared_cache  # slow to import

        shared = open_shared_cache(request)
        found["shared"] = [blob for blob in blobs if shared and shared.has_name(blob)]
    return found
