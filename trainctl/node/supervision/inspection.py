"""What a node has, what it lacks, what is free and what uses it. Writes nothing under ROOT."""

from __future__ import annotations

import shutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from trainctl.base.failure import Failure, space_for_weights
from trainctl.base.filesystem.files import why_unwritable
from trainctl.base.network.addresses import ServingAddresses, addresses
from trainctl.base.protocol import host as protocol
from trainctl.base.protocol.host import GpuUsage as GpuUse
from trainctl.base.protocol.method import RootRequest
from trainctl.base.protocol.runs import RunReport
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.cache.inventory import CacheInventory
from trainctl.node.cache.leases import CacheLeases
from trainctl.node.cache.query import cache_query
from trainctl.node.containers.engines import LocalEngine, choose_engine
from trainctl.node.containers.images import find_image, validate_reference
from trainctl.node.jobs.host_environment import check_host
from trainctl.node.runs import record as runs
from trainctl.node.runs.mount import MountSupport, private_mounts, try_mounts, why_blocked
from trainctl.node.runs.record import (
    CREATED,
    DEPLOYING,
    PENDING,
    RUNNING,
    NodeRun,
    list_runs,
    list_specs,
)
from trainctl.node.scheduling.claims import holder_pid, is_held
from trainctl.node.scheduling.gpus import usable_gpus
from trainctl.node.system import layout
from trainctl.node.system.gpus import GpuDevice, ListGpusFn, gpu_users, list_gpus
from trainctl.node.system.host import cpu_count, logout_rules, memory_bytes
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Dict[str, Any]], None]
_LIVE = (PENDING, CREATED, DEPLOYING, RUNNING)
_Live = List[Tuple[RunSpec, RunReport]]


def inspect(request: protocol.InspectNodeRequest, emit: Emit) -> protocol.NodeInspection:
    """Report GPUs with their users, disk space, cached weights and live runs."""
    layout = layout_of(request)
    told = ((spec, run.status()) for run, spec in list_specs(layout))
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


def reached_at(request: RootRequest, emit: Emit) -> protocol.AddressesResponse:
    """Where others reach this host."""
    return {"addresses": addresses()}


def _is_live(run: RunReport) -> bool:
    """Whether the run goes on; one that was created and whose supervisor is dead, as after a power failure, doesn't."""
    return run["status"] in _LIVE and (run["supervised"] or run["status"] != CREATED)


def _run(spec: RunSpec, now: RunReport) -> protocol.NodeLiveRun:
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
        found = usable_gpus(declared)
        used = gpu_users(found)
    except Failure as error:
        return [], error.summary
    return [_gpu(one, live, used.get(one.id)) for one in found], None


def _gpu(gpu: GpuDevice, live: _Live, user: Optional[str]) -> GpuUse:
    """A claim that no run here has belongs to another process: one under another root, or another user's."""
    spec = next((spec for spec, now in live if gpu.id in (now["gpus"] or ())), None)
    claimed = None
    if spec is not None:
        claimed = f"{spec['address']} run {spec['number']}"
    elif is_held(gpu.claim):
        claimed = f"PID {holder_pid(gpu.claim) or '?'}"
    return {
        "index": gpu.number,
        "uuid": gpu.id,
        "name": gpu.name,
        "memory_mib": gpu.memory_total and gpu.memory_total >> 20,
        "claimed_by": claimed,
        "project": spec["project"] if spec else None,
        "used_by": (claimed or f"PID {user}") if user else None,
    }


def _disk(root: Path) -> protocol.NodeDiskUsage:
    """Bytes of the file system that the root is on, or will be."""
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = shutil.disk_usage(str(place))
    except OSError:
        return {"total": None, "free": None}
    return {"total": found.total, "free": found.free}


def _cache(layout: Layout) -> protocol.WeightsCacheUsage:
    if not layout.cache.is_dir():
        return {"used": 0, "listings": []}
    inventory, leases = CacheInventory(layout), CacheLeases(layout)
    needed = leases.live()
    listings: List[protocol.ListingUsage] = [
        {
            "id": listing.id,
            "source": listing.source,
            "bytes": listing.size,
            "last_used": listing.last_used or None,
            "leased_by": [leases.describe(key) for key in needed.get(listing.id, [])],
            "projects": [leases.project(key) for key in needed.get(listing.id, [])],
        }
        for listing in inventory.listings()
        if inventory.holds(listing)
    ]
    return {"used": inventory.used(), "listings": listings}


def facts(request: protocol.FactsRequest, emit: Emit) -> protocol.Facts:
    """Kernel, disk, what hosts lack, and whether each of the mounts can be made here: tried, not guessed."""
    places = layout.layout_of(request)
    data = layout.check_absolute(request["data"], "data")
    private, cached, free = private_mounts(), request.get("cached"), request.get("free_resources")
    reports = lru_cache(maxsize=None)(list_gpus)
    gpus, problem = _gpu_facts(request.get("accelerators", []), reports)
    return {
        "serving": ServingAddresses.here().to_json(),
        "python": sys.version.split()[0],
        "cpus": cpu_count(),
        "memory": memory_bytes(),
        "unusable": next(filter(None, map(why_unwritable, (places.root, data, places.blobs))), ""),
        "disk_free": space_for_weights(str(places.cache)),
        "mount": "namespace" if private.possible else "link",
        "logout": logout_rules(),
        "hosts": [check_host(wanted) for wanted in request.get("hosts", [])],
        "absent": [path for path in request.get("sources", []) if not Path(path).is_dir()],
        "gpus": gpus,
        "gpus_problem": problem,
        "images": _image_availability(places, request.get("images", [])),
        "cached": cache_query(cached) if cached else None,
        "free_resources": free_resources(free, emit, reports) if free else None,
        "blocked": _blocked(request.get("mounts", []), private, [places.root, places.cache, data]),
    }


def free_resources(
    request: protocol.FreeResourcesRequest, emit: Emit, reports: ListGpusFn = list_gpus
) -> protocol.FreeResources:
    """Report what is free; the run ``replaced_key`` counts as gone, and its GPUs as free."""
    layout = Layout(request["root"])
    live = {run.key: run for run in list_runs(layout) if _is_running(run)}
    replaced_key = live.pop(request.get("replaced_key") or "", None)
    freed = {*(replaced_key.record.get("gpus") or ())} if replaced_key else set()
    key, cached = request.get("key"), request.get("cached")
    spec = NodeRun(layout, key).spec if key else None
    return {
        "gpus": _free_gpus(request["declared"], request["accelerators"], reports, freed),
        "live": list(live),
        "cpus": cpu_count(),
        "memory": memory_bytes(),
        "nodes": spec["nodes"] if spec else None,
        "cached": cache_query(cached) if cached else None,
    }


def _is_running(run: NodeRun) -> bool:
    now = run.status()
    return now is not None and now["status"] not in (*runs.ENDED, runs.LOST)


def _free_gpus(
    declared: Optional[int], kinds: List[str], reports: ListGpusFn, freed: Set[str]
) -> List[protocol.FreeGpu]:
    try:
        found = usable_gpus(declared, reports)
        used = gpu_users(found)
    except Failure:
        return []  # facts tells what is wrong with them
    return [
        {
            "name": one.name,
            "is": [kind for kind in kinds if one.is_a(kind)],
            "free": one.id in freed or (not is_held(one.claim) and one.id not in used),
        }
        for one in found
    ]


def _gpu_facts(
    kinds: List[str], reports: ListGpusFn
) -> Tuple[List[protocol.HostGpuFacts], Optional[str]]:
    """What the host's tools report, and what is wrong with the tools."""
    try:
        found = sorted(reports())
    except Failure as error:
        return [], error.summary
    return [{"name": gpu.name, "is": [k for k in kinds if gpu.is_a(k)]} for gpu in found], None


def _image_availability(
    layout: Layout, wanted: List[protocol.ImageQuery]
) -> List[protocol.ImageAvailability]:
    """For each image which engine would run it, and whether it has it; or why none would."""
    engines: Dict[Optional[str], Union[LocalEngine, Failure]] = {}
    found: List[protocol.ImageAvailability] = []
    for one in wanted:
        name = one["engine"]
        if name not in engines:
            try:
                engines[name] = choose_engine(name)
            except Failure as failure:
                engines[name] = failure
        engine = engines[name]
        if isinstance(engine, Failure):
            found.append({"engine": None, "present": False, "why": engine.summary})
        else:
            present = find_image(layout, engine, validate_reference(one["image"])) is not None
            found.append({"engine": engine.name, "present": present, "why": ""})
    return found


def _blocked(
    mounts: List[str], private: MountSupport, kept: List[Path]
) -> List[protocol.BlockedMount]:
    if not private.possible:
        why = f"private mounts don't work here: {private.detail}"
        return [{"path": path, "why": why} for path in mounts]
    reasons = {path: why_blocked(path, kept) for path in mounts}
    promising = [path for path, why in reasons.items() if why is None]
    if promising and not try_mounts(promising).possible:
        for path in promising:
            attempt = try_mounts([path])
            reasons[path] = None if attempt.possible else attempt.detail
    return [{"path": path, "why": why} for path, why in reasons.items() if why]
