"""What of a node is free now, for whoever chooses among nodes. Writes nothing."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set

from trainctl.base.failure import Failure
from trainctl.base.protocol.host import FreeGpu, Vacancy, VacancyRequest
from trainctl.node.cache.presence import cache_query
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import Run, all_runs
from trainctl.node.system.capacity import cpus, memory
from trainctl.node.system.layout import Layout
from trainctl.node.turns import gpus
from trainctl.node.turns.claims import is_held
from trainctl.node.turns.gpu_tools import reported, users

Emit = Callable[[Dict[str, Any]], None]


def vacancy(request: VacancyRequest, emit: Emit, reports: gpus.Reports = reported) -> Vacancy:
    """Report what is free; the run ``leaving`` counts as gone, and its GPUs as free."""
    layout = Layout(request["root"])
    live = {run.key: run for run in all_runs(layout) if _goes_on(run)}
    leaving = live.pop(request.get("leaving") or "", None)
    freed = {*(leaving.record.get("gpus") or ())} if leaving else set()
    spec = Run(layout, request["key"]).spec if request.get("key") else None
    return {
        "gpus": _gpus(request["declared"], request["accelerators"], reports, freed),
        "live": list(live),
        "cpus": cpus(),
        "memory": memory(),
        "nodes": spec["nodes"] if spec else None,
        "cached": cache_query(request["cached"], emit) if "cached" in request else None,
    }


def _goes_on(run: Run) -> bool:
    now = run.status()
    return now is not None and now["status"] not in (*runs.ENDED, runs.LOST)


def _gpus(
    declared: Optional[int], kinds: List[str], reports: gpus.Reports, freed: Set[str]
) -> List[FreeGpu]:
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
