"""What a node has, and who uses it, in one answer. Writes nothing."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.addresses import addresses
from trainctl.base.failure import Failure
from trainctl.node.cache.inventory import Inventory
from trainctl.node.cache.leases import Leases
from trainctl.node.supervision.run_verbs import list_runs
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.turns.claims import holder, is_held
from trainctl.node.turns.gpus import Gpu, usable, users

Emit = Callable[[Dict[str, Any]], None]
_LIVE = ("PENDING", "CREATED", "DEPLOYING", "RUNNING")


def inspect(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """GPUs with whoever holds them, space, what is cached, and the runs that are live."""
    layout = layout_of(request)
    runs = list_runs({"root": str(layout.root)}, emit)["runs"]
    live = [run for run in runs if _is_live(run)]
    gpus, problem = _gpus(request.get("gpus"), live)
    return {
        "hostname": socket.gethostname(),
        "addresses": addresses(),
        "gpus": gpus,
        "gpus_problem": problem,
        "disk": _disk(layout.root),
        "cache": _cache(layout),
        "runs": [_run(run) for run in live],
    }


def _is_live(run: Mapping[str, Any]) -> bool:
    """Not one that was made and that nobody begins: who was to is dead, as after a power failure."""
    status = str(run.get("status", "")).rpartition("_")[2]
    return status in _LIVE and not (status == "CREATED" and run.get("supervised") is False)


def _run(run: Mapping[str, Any]) -> Dict[str, Any]:
    names = ("key", "id", "address", "number", "rank", "status", "lineage", "project")
    return {name: run.get(name) for name in names}


def _gpus(declared: Optional[int], live: List[Mapping[str, Any]]) -> Any:
    """Those that jobs may use, and what is wrong with the tools that report them."""
    try:
        found = usable(declared)
        used = users(found)
    except Failure as error:
        return [], error.summary
    return [_gpu(one, live, used.get(one.id)) for one in found], None


def _gpu(gpu: Gpu, live: List[Mapping[str, Any]], user: Optional[str]) -> Dict[str, Any]:
    """A claim that no run here has belongs to another process: one under another root, or another user's."""
    run = next((run for run in live if gpu.id in (run.get("gpus") or ())), None)
    claimed = None
    if run is not None:
        claimed = f"{run.get('address')} run {run.get('number')}"
    elif is_held(gpu.claim):
        claimed = f"PID {holder(gpu.claim) or '?'}"
    return {
        **gpu.to_json(),
        "claimed_by": claimed,
        "project": run and run.get("project"),
        "used_by": user and (claimed or f"PID {user}"),
    }


def _disk(root: Path) -> Dict[str, Optional[int]]:
    """Bytes of the file system that the root is on, or will be."""
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = shutil.disk_usage(str(place))
    except OSError:
        return {"total": None, "free": None}
    return {"total": found.total, "free": found.free}


def _cache(layout: Layout) -> Dict[str, Any]:
    if not layout.cache.is_dir():
        return {"used": 0, "listings": []}
    inventory, leases = Inventory(layout), Leases(layout)
    needed = leases.live()
    listings = [
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
