"""Which weights are here already, and how much more could come. Writes nothing, and needs nothing that delivers."""

from __future__ import annotations

from trainctl.base.protocol.weights import Cached, CacheQuery
from trainctl.node.cache.leases import Leases
from trainctl.node.cache.room import claimable, leased_contents, limit_of
from trainctl.node.cache.trees import Trees
from trainctl.node.system import layout as names
from trainctl.node.system.layout import layout_of


def cache_query(request: CacheQuery) -> Cached:
    """Which of the listings and blobs are complete here, judging by seals and names, and how much more could come."""
    layout = layout_of(request)
    trees = Trees(layout)
    listings = [names.sha256(one, "listing") for one in request.get("listings", [])]
    blobs = [names.sha256(one, "blob") for one in request.get("blobs", [])]
    found: Cached = {
        "trees": [one for one in listings if trees.sealed(one)],
        "blobs": [one for one in blobs if layout.files.has(one)],
    }
    if request.get("room"):
        leased = set(leased_contents(layout))
        found["room"], found["most"] = claimable(layout, limit_of(request), leased)
        found["leases"] = sorted(Leases(layout).live())
        found["leased"] = [one for one in blobs if one in leased]
    if request.get("shared"):
        from trainctl.node.transfer.shared import shared_of  # slow to import

        shared = shared_of(request)
        found["shared"] = [one for one in blobs if shared and shared.has_name(one)]
    return found
