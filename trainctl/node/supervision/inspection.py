"""What a node has, and who uses it, in one answer. Writes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from trainctl.base.addresses import addresses
from trainctl.base.failure import Failure
from trainctl.base.protocol import host as protocol
from trainctl.base.protocol.host import Gpu as GpuUse
from trainctl.base.protocol.runs import RunReport
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.protocol.verb import AtRoot
from trainctl.node.cache.inventory import Inventory
from trainctl.node.cache.leases import Leases
from trainctl.node.runs.record import CREATED, DEPLOYING, PENDING, RUNNING, all_specs
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.turns.claims import holder, is_held
from trainctl.node.turns.gpus import Gpu, usable, users

Emit = Callable[[Dict[str, Any]], None]
_LIVE = (PENDING, CREATED, DEPLOYING, RUNNING)
_Live = List[Tuple[RunSpec, RunReport]]


def inspect(request: protocol.InspectRequest, emit: Emit) -> protocol.Inspection:
    """GPUs with whoever holds them, space, what is cached, and the runs that are live."""
    layout = layout_of(request)
    told = ((spec, run.status()) for run, spec in all_specs(layout))
    live = [(spec, now) for spec, now in told if now and _is_live(now)]
    gpus, problem = _gpus(request["gpus"], live)
    return {
        "addresses": addresses(),
        "gpus": gpus,
        "gpus_problem": problem,
        "disk": _disk(layout.root),
        "cache": _cache(layout),
        "runs": [_run(*one) for one in live],
    }


def reached_at(request: AtRoot, emit: Emit) -> protocol.Addresses:
    """Where others reach this host."""
    return {"addresses": addresses()}


def _is_live(run: RunReport) -> bool:
    """Not one that was made and that nobody begins: who was to is dead, as after a power failure."""
    return run["status"] in _LIVE and (run["supervised"] or run["status"] != CREATED)


def _run(spec: RunSpec, now: RunReport) -> protocol.LiveRun:
    return {
        "key": spec["key"],
        "id": spec["id"],
        "address": spec["address"],
        "number": spec["number"],
        "rank": spec["rank"],
        "status": now["status"],
        "lineage": spec["lineage"],
        "project": spec["project"],
    }


def _gpus(declared: Optional[int], live: _Live) -> Tuple[List[GpuUse], Optional[str]]:
    """Those that jobs may use, and what is wrong with the tools that report them."""
    try:
        found = usable(declared)
        used = users(found)
    except Failure as error:
        return [], error.summary
    return [_gpu(one, live, used.get(one.id)) for one in found], None


def _gpu(gpu: Gpu, live: _Live, user: Optional[str]) -> GpuUse:
    """A claim that no run here has belongs to another process: one under another root, or another user's."""
    spec = next((spec for spec, now in live if gpu.id in (now["gpus"] or ())), None)
    claimed = None
    if spec is not None:
        claimed = f"{spec['address']} run {spec['number']}"
    elif is_held(gpu.claim):
        claimed = f"PID {holder(gpu.claim) or '?'}"
    return {
        "index": gpu.number,
        "uuid": gpu.id,
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "claimed_by": claimed,
        "project": spec["project"] if spec else None,
        "used_by": (claimed or f"PID {user}") if user else None,
    }


def _disk(root: Path) -> protocol.Disk:
    """Bytes of the file system that the root is on, or will be."""
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = shutil.disk_usage(str(place))
    except OSError:
        return {"total": None, "free": None}
    return {"total": found.total, "free": found.free}


def _cache(layout: Layout) -> protocol.CacheUse:
    if not layout.cache.is_dir():
        return {"used": 0, "listings": []}
    inventory, leases = Inventory(layout), Leases(layout)
    needed = leases.live()
    listings: List[protocol.CachedListing] = [
        {
            "id": kept.id,
            "source": kept.source,
            "bytes": kept.size,
            "last_used": kept.last_used or None,
            "leased_by": [leases.describe(key) for key in needed.get(kept.id, [])],
            "projects": [leases.project(key) for key in needed.get(kept.id, [])],
        }
        for kept in inventory.listings()
        if inventory.holds(kept)
    ]
    return {"used": inventory.used(), "listings": listings}
