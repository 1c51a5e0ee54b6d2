"""Inspect a node: GPUs, disk, caches, runs, requirements. Read-only."""

from __future__ import annotations

import contextlib
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, Union, cast

from trainctl.base.filesystem.files import why_unwritable
from trainctl.base.filesystem.space import space_for_weights
from trainctl.base.network.addresses import ServingAddresses, addresses
from trainctl.base.protocol import host as protocol
from trainctl.base.protocol.method import RootRequest
from trainctl.base.protocol.runs import RunReport, RunSpec
from trainctl.base.protocol.weights import CachedListing
from trainctl.errors import TrainctlError
from trainctl.node.cache.disk_space import cache_query
from trainctl.node.cache.eviction import CacheInventory
from trainctl.node.cache.holds import CacheHolds
from trainctl.node.environment.workspace import check_host
from trainctl.node.runs import record as runs
from trainctl.node.runs.mount import blocked_reason, mount_problem, try_mounts
from trainctl.node.runs.record import (
    CREATED,
    DEPLOYING,
    PENDING,
    RUNNING,
    NodeRun,
    list_runs,
    list_specs,
    part_of,
)
from trainctl.node.scheduling.allocation import usable_gpus
from trainctl.node.scheduling.claims import holder_pid, is_held
from trainctl.node.system import layout
from trainctl.node.system.gpus import GpuDevice, ListGpusFn, gpu_users, list_gpus
from trainctl.node.system.host import cpu_count, logout_rules, memory_bytes
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Dict[str, Any]], None]
_LIVE = (PENDING, CREATED, DEPLOYING, RUNNING)
_Live = List[Tuple[RunSpec, RunReport]]


def inspect(request: protocol.InspectNodeRequest, emit: Emit) -> protocol.NodeInspection:
    """Report GPUs with their users, disk space, cached weights and live runs."""
    from trainctl.node.supervision.idle_shutdown import MachineUse

    layout = layout_of(request)
    statuses = ((spec, run.status()) for run, spec in list_specs(layout))
    live = [
        (spec, status)
        for spec, status in statuses
        # a created run without supervisor is not live
        if status
        and status["status"] in _LIVE
        and (status["supervised"] or status["status"] != CREATED)
    ]
    use = MachineUse(layout)
    path = layout.root  # may not exist yet
    while not path.exists() and path != path.parent:
        path = path.parent
    disk: protocol.NodeDiskUsage = {"total": None, "free": None}
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(str(path))
        disk = {"total": usage.total, "free": usage.free}
    return {
        **reached_at(request, emit),
        **_gpu_usage(request["gpus"], live),
        "disk": disk,
        "cache": _cache(layout),
        "runs": [
            cast(
                "protocol.NodeLiveRun",
                {**part_of(spec, protocol.NodeLiveRun), "status": status["status"]},
            )
            for spec, status in live
        ],
        "idle_shutdown": use.report() if use.settings else None,
    }


def reached_at(request: RootRequest, emit: Emit) -> protocol.AddressesResponse:
    """Return the addresses of this host."""
    return {"addresses": addresses()}


def _gpu_usage(declared: Optional[int], live: _Live) -> protocol.GpuUsageReport:
    """GPUs with their users; unknown claims belong to another root directory or user."""
    try:
        gpus = usable_gpus(declared)
        users = gpu_users(gpus)
    except TrainctlError as error:
        return {"gpus": [], "gpus_problem": error.summary}
    rows: List[protocol.GpuUsage] = []
    for gpu in gpus:
        spec = next((spec for spec, status in live if gpu.id in (status["gpus"] or ())), None)
        claimed = None
        if spec is not None:
            claimed = f"{spec['address']} run {spec['number']}"
        elif is_held(gpu.claim):
            claimed = f"PID {holder_pid(gpu.claim) or '?'}"
        reported: protocol.ReportedGpu = {
            "index": gpu.number,
            "uuid": gpu.id,
            "name": gpu.name,
            "memory_mib": gpu.memory_total and gpu.memory_total >> 20,
        }
        user = users.get(gpu.id)
        used = (claimed or f"PID {user}") if user else None
        project = spec["project"] if spec else None
        rows.append({**reported, "claimed_by": claimed, "project": project, "used_by": used})
    return {"gpus": rows, "gpus_problem": None}


def _cache(layout: Layout) -> protocol.WeightsCacheUsage:
    if not layout.cache.is_dir():
        return {"used": 0, "listings": []}
    inventory, holds = CacheInventory(layout), CacheHolds(layout)
    held = holds.live_holds()
    listings: List[CachedListing] = [
        {
            **listing.row(),
            "leased_by": [holds.describe(key) for key in held.get(listing.id, [])],
            "projects": [holds.project(key) for key in held.get(listing.id, [])],
        }
        for listing in inventory.listings()
        if inventory.holds(listing)
    ]
    return {"used": inventory.used(), "listings": listings}


def facts(request: protocol.FactsRequest, emit: Emit) -> protocol.Facts:
    """Report kernel, disk, missing requirements, and mounts, which are tried."""
    paths = layout.layout_of(request)
    data = layout.check_absolute(request["data"], "data")
    problem, cached, free = mount_problem(), request.get("cached"), request.get("free_resources")
    gpu_source, kinds = lru_cache(maxsize=None)(list_gpus), request.get("accelerators", [])
    gpus: protocol.HostGpuReport = {"gpus": [], "gpus_problem": None}
    try:
        gpus["gpus"] = [
            {"name": gpu.name, "is": [*filter(gpu.matches_kind, kinds)]}
            for gpu in sorted(gpu_source())
        ]
    except TrainctlError as error:
        gpus["gpus_problem"] = error.summary
    software: protocol.SoftwareFacts = {
        "python": sys.version.split()[0],
        "logout": logout_rules(),
        "hosts": [check_host(requirement) for requirement in request.get("hosts", [])],
        "images": _image_availability(paths, request.get("images", [])),
    }
    directories: protocol.DirectoryFacts = {
        "unusable": next(filter(None, map(why_unwritable, (paths.root, data, paths.blobs))), ""),
        "disk_free": space_for_weights(str(paths.cache)),
        "absent": [path for path in request.get("sources", []) if not Path(path).is_dir()],
    }
    mounts: protocol.MountFacts = {
        "mount": "link" if problem else "namespace",
        "blocked": _blocked(request.get("mounts", []), problem, [paths.root, paths.cache, data]),
    }
    return {
        **_capacity(),
        **gpus,
        **software,
        **directories,
        **mounts,
        "serving": ServingAddresses.here().to_json(),
        "cached": cache_query(cached) if cached else None,
        "free_resources": free_resources(free, emit, gpu_source) if free else None,
    }


def _capacity() -> protocol.HostCapacity:
    return {"cpus": cpu_count(), "memory": memory_bytes()}


def free_resources(
    request: protocol.FreeResourcesRequest, emit: Emit, gpu_source: ListGpusFn = list_gpus
) -> protocol.FreeResources:
    """Report free GPUs, CPUs and memory; ``replaced_key`` names a run to ignore."""
    layout = Layout(request["root"])
    over = (None, *runs.ENDED, runs.LOST)
    live = {
        run.key: run
        for run in list_runs(layout)
        if ((report := run.status()) and report["status"]) not in over
    }
    replaced = live.pop(request.get("replaced_key") or "", None)
    freed = {*(replaced.record.get("gpus") or ())} if replaced else set()
    key, cached = request.get("key"), request.get("cached")
    spec = NodeRun(layout, key).spec if key else None
    gpus: List[GpuDevice] = []
    users: Dict[str, str] = {}
    with contextlib.suppress(TrainctlError):  # reported by ``facts``
        usable = usable_gpus(request["declared"], gpu_source)
        users, gpus = gpu_users(usable), usable
    return {
        **_capacity(),
        "gpus": [
            {
                "name": gpu.name,
                "is": [*filter(gpu.matches_kind, request["accelerators"])],
                "free": gpu.id in freed or (not is_held(gpu.claim) and gpu.id not in users),
            }
            for gpu in gpus
        ],
        "live": list(live),
        "nodes": spec["nodes"] if spec else None,
        "cached": cache_query(cached) if cached else None,
    }


def _image_availability(
    layout: Layout, images: List[protocol.ImageQuery]
) -> List[protocol.ImageAvailability]:
    """For each image, its engine and whether it is present; else the error."""
    from trainctl.node.containers.engines import choose_engine
    from trainctl.node.containers.images import find_image, validate_reference
    from trainctl.node.environment.container import RDMA

    engines: Dict[Optional[str], Union[protocol.EngineInfo, TrainctlError]] = {}
    rows: List[protocol.ImageAvailability] = []
    for image in images:
        name = image["engine"]
        if name not in engines:
            try:
                engines[name] = choose_engine(name)
            except TrainctlError as failure:
                engines[name] = failure
        engine = engines[name]
        if isinstance(engine, TrainctlError):
            rows.append({"engine": None, "present": False, "why": engine.summary, "rdma": False})
        else:
            present = find_image(layout, engine, validate_reference(image["image"])) is not None
            rdma = RDMA.is_dir()
            rows.append({"engine": engine["name"], "present": present, "why": "", "rdma": rdma})
    return rows


def _blocked(mounts: List[str], problem: str, protected: List[Path]) -> List[protocol.BlockedMount]:
    if problem:
        reason = f"private mounts don't work on this node: {problem}"
        return [{"path": path, "why": reason} for path in mounts]
    reasons = {path: blocked_reason(path, protected) for path in mounts}
    candidates = [path for path, reason in reasons.items() if reason is None]
    if candidates and try_mounts(candidates):
        reasons.update((path, try_mounts([path])) for path in candidates)
    return [{"path": path, "why": reason} for path, reason in reasons.items() if reason]
