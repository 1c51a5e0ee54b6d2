"""Evicting listings from the node's cache by hand."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from trainctl.base.failure import Failure
from trainctl.base.files import make_directory
from trainctl.base.protocol.weights import CacheAnswer, CacheRow, EvictRequest
from trainctl.node.cache.inventory import Inventory, Kept
from trainctl.node.cache.leases import Leases
from trainctl.node.cache.removal import Removal
from trainctl.node.cache.reservations import room_lock
from trainctl.node.system.layout import layout_of

Emit = Callable[[Dict[str, Any]], None]
_SHORTEST_PREFIX = 8

EVICTED, LEASED, BUSY = "evicted", "leased", "busy"


def cache_evict(request: EvictRequest, emit: Emit) -> CacheAnswer:
    """Evict the named listings, or all, but what live runs lease or a delivery is at; ``dry_run`` only says so."""
    layout = layout_of(request)
    names, dry_run = request["listings"], request["dry_run"]
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    make_directory(layout.locks)
    with room_lock(layout):
        inventory = Inventory(layout)
        listings = inventory.listings()
        chosen = listings if names is None else _chosen(listings, names)
        here = {kept.id for kept in chosen if inventory.holds(kept)}
        removal = Removal(layout, listings)
        leases = Leases(layout)
        rows: List[CacheRow] = []
        freed = 0
        for kept in chosen:
            holders = leases.live().get(kept.id, [])
            gone = None if dry_run else removal.listing(kept, leases.need)
            freed += gone or 0
            if kept.id in here:
                rows.append(_row(kept, [leases.describe(key) for key in holders], gone, dry_run))
        if names is None and not dry_run:
            freed += removal.strays()
    return {"listings": rows, "bytes": 0, "freed": freed}


def _chosen(listings: List[Kept], names: List[str]) -> List[Kept]:
    """The listings whose ids begin with one of the names."""
    for name in names:
        if len(name) < _SHORTEST_PREFIX:
            raise Failure("request", f"{name!r} is no id of a listing, nor the beginning of one")
    return [kept for kept in listings if kept.id.startswith(tuple(names))]


def _row(kept: Kept, holders: List[str], gone: Optional[int], dry_run: bool) -> CacheRow:
    outcome = LEASED if holders else EVICTED if dry_run or gone is not None else BUSY
    return {
        "id": kept.id,
        "source": kept.source,
        "files": kept.files,
        "bytes": kept.size,
        "last_used": kept.last_used or None,
        "leased_by": holders,
        "outcome": outcome,
    }
