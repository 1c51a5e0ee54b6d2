"""What of a node is free now, for whoever chooses among nodes. Writes nothing."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Set

from trainctl.base.failure import Failure
from trainctl.node.cache.presence import cache_query
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import Run, all_runs
from trainctl.node.system.capacity import capacity
from trainctl.node.system.layout import Layout
from trainctl.node.turns import gpus
from trainctl.node.turns.claims import is_held
from trainctl.node.turns.gpu_tools import reported, users

Emit = Callable[[Dict[str, Any]], None]


def vacancy(
    request: Mapping[str, Any], emit: Emit, reports: gpus.Reports = reported
) -> Dict[str, Any]:
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
        "gpus": _gpus(request.get("declared", 0), kinds, reports, freed),
        "live": list(live),
        **capacity(),
        "nodes": spec.get("nodes"),
        "cached": cache_query(request["cached"], emit) if "cached" in request else None,
    }


def _goes_on(run: Run) -> bool:
    status = run.status() or {}
    return status.get("status") not in (*runs.ENDED, runs.LOST, None)


def _gpus(
    declared: Any, kinds: List[str], reports: gpus.Reports, freed: Set[str]
) -> List[Dict[str, Any]]:
    try:
        found = gpus.usable(declared, reports)
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
