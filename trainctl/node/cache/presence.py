"""Which weights are here already, and how much more could come. Writes nothing, and needs nothing that delivers."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from trainctl.node.cache.leases import Leases
from trainctl.node.cache.room import claimable, leased_contents, limit_of
from trainctl.node.cache.trees import Trees
from trainctl.node.system import layout as names
from trainctl.node.system.layout import layout_of

Emit = Callable[[Dict[str, Any]], None]


def cache_query(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Which of the listings and blobs are whole here, going by seals and names, and how much more could come."""
    layout = layout_of(request)
    trees = Trees(layout)
    listings = [names.sha256(one, "listing") for one in request.get("listings", [])]
    blobs = [names.sha256(one, "blob") for one in request.get("blobs", [])]
    found: Dict[str, Any] = {
        "trees": [one for one in listings if trees.sealed(one)],
        "blobs": [one for one in blobs if layout.blob(one).is_file()],
    }
    if request.get("room"):
        found["room"] = claimable(layout, limit_of(request))
        found["leases"] = sorted(Leases(layout).live())
    if request.get("room") or request.get("leased"):
        asked = set(blobs)
        leased = asked.intersection(leased_contents(layout)) if asked else asked
        found["leased"] = [one for one in blobs if one in leased]
    if request.get("shared"):
        from trainctl.node.transfer.shared import shared_of  # with all that brings bytes

        shared = shared_of(request)
        if shared is not None:
            found["shared"] = [one for one in blobs if shared.blob(one).is_file()]
    return found
