"""What a node says of itself before anything moves, and what of it is free now. Writes nothing under ROOT."""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, Union

from trainctl.base.addresses import Serving, addresses
from trainctl.base.failure import Failure, weights_room
from trainctl.base.files import unusable
from trainctl.base.processes import boot_id
from trainctl.node.cache.presence import cache_query
from trainctl.node.containers.engines import Engine, choose
from trainctl.node.containers.images import checked, find
from trainctl.node.jobs.host_environment import check_host
from trainctl.node.runs import record as runs
from trainctl.node.runs.mount import Possible, blocked, private_mounts, try_mounts
from trainctl.node.runs.record import Run, all_runs
from trainctl.node.system import layout
from trainctl.node.system.host import capacity, logout_rules
from trainctl.node.system.layout import Layout
from trainctl.node.turns.claims import is_held
from trainctl.node.turns.gpus import Reports, reported, usable, users

Emit = Callable[[Dict[str, Any]], None]


def facts(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Kernel, disk, what hosts lack, and whether each of the mounts can be made here: tried, not guessed."""
    places = layout.layout_of(request)
    data = layout.absolute(request["data"], "data")
    private = private_mounts()
    reports = lru_cache(maxsize=None)(reported)
    gpus, problem = _gpus([str(one) for one in request.get("accelerators", [])], reports)
    return {
        "hostname": socket.gethostname(),
        "addresses": addresses(),
        "serving": Serving.here().to_json(),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "machine": os.uname().machine,
        "boot": boot_id(),
        **capacity(),
        "unusable": next(filter(None, map(unusable, (places.root, data, places.blobs))), ""),
        "disk_free": weights_room(str(places.cache)),
        "mount": "namespace" if private.possible else "link",
        "mount_detail": private.detail,
        "logout": logout_rules(),
        "hosts": [check_host(wanted) for wanted in request.get("hosts", [])],
        "absent": [path for path in request.get("sources", []) if not Path(path).is_dir()],
        "gpus": gpus,
        "gpus_problem": problem,
        "images": _images(places, request.get("images", [])),
        "cached": cache_query(request["cached"], emit) if "cached" in request else None,
        "vacancy": vacancy(request["vacancy"], emit, reports) if "vacancy" in request else None,
        "blocked": _blocked(
            [str(one) for one in request.get("mounts", [])],
            private,
            [places.root, places.cache, data],
        ),
    }


def vacancy(request: Mapping[str, Any], emit: Emit, reports: Reports = reported) -> Dict[str, Any]:
    """``gpus`` that jobs may use, each with ``free`` and the ``accelerators`` that it is; ``cpus`` and ``memory``; ``live``: keys of runs that go on;
    ``nodes``: of the run ``key``, if it was started here before, its nodes by rank, else null; ``cached``: what ``cache_query`` says, if asked.

    The run ``leaving`` counts as gone, and its GPUs as free.
    """
    layout = Layout(request["root"])
    kinds = [str(one) for one in request.get("accelerators", [])]
    live = {run.key: run for run in all_runs(layout) if _goes_on(run)}
    leaving = live.pop(str(request.get("leaving")), None)
    freed = set(leaving.record.get("gpus") or ()) if leaving else set()
    spec = (Run(layout, request["key"]).spec if request.get("key") else None) or {}
    return {
        "gpus": _vacant(request.get("declared", 0), kinds, reports, freed),
        "live": list(live),
        **capacity(),
        "nodes": spec.get("nodes"),
        "cached": cache_query(request["cached"], emit) if "cached" in request else None,
    }


def _goes_on(run: Run) -> bool:
    status = run.status() or {}
    return status.get("status") not in (*runs.ENDED, runs.LOST, None)


def _vacant(
    declared: Any, kinds: List[str], reports: Reports, freed: Set[str]
) -> List[Dict[str, Any]]:
    try:
        found = usable(declared, reports)
        used = users(found)
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


def _gpus(kinds: List[str], reports: Reports) -> Tuple[List[Dict[str, Any]], Optional[str]]:
    """What the host's tools report, each with those accelerators that it is; and what is wrong with the tools."""
    try:
        found = sorted(reports())
    except Failure as error:
        return [], error.summary
    return [{**one.to_json(), "is": [k for k in kinds if one.is_a(k)]} for one in found], None


def _images(layout: Layout, wanted: List[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """For each image which engine would run it, and whether it has it; or why none would."""
    engines: Dict[Optional[str], Union[Engine, Failure]] = {}
    found = []
    for one in wanted:
        name = one.get("engine")
        if name not in engines:
            try:
                engines[name] = choose(name)
            except Failure as failure:
                engines[name] = failure
        engine = engines[name]
        if isinstance(engine, Failure):
            found.append({"engine": None, "present": False, "why": engine.summary})
        else:
            present = find(layout, engine, checked(one["image"])) is not None
            found.append({"engine": engine.name, "present": present, "why": ""})
    return found


def _blocked(mounts: List[str], private: Possible, kept: List[Path]) -> List[Dict[str, str]]:
    if not private.possible:
        why = f"private mounts don't work here: {private.detail}"
        return [{"path": path, "why": why} for path in mounts]
    reasons = {path: blocked(path, kept) for path in mounts}
    promising = [path for path, why in reasons.items() if why is None]
    if promising and not try_mounts(promising).possible:
        for path in promising:
            attempt = try_mounts([path])
            reasons[path] = None if attempt.possible else attempt.detail
    return [{"path": path, "why": why} for path, why in reasons.items() if why]
