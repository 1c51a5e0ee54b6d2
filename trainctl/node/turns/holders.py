"""Who has the GPUs that a run waits for, in words."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Set

from trainctl.node.runs.record import ENDED, Run
from trainctl.node.system.files import names_in
from trainctl.node.system.layout import Layout
from trainctl.node.system.processes import alive

ELSEWHERE = "another directory's run"
"""Who holds a claim that no run under this ROOT has."""

_NAMED = 2
"""How many are named: a line of ``status`` is short."""


def holders(layout: Layout, wanted: Iterable[str]) -> Dict[str, Mapping[str, Any]]:
    """By id of a GPU the specification of the run under this ROOT that has claimed it. Only records are read, and nothing is mended."""
    left: Set[str] = set(wanted)
    found: Dict[str, Mapping[str, Any]] = {}
    for name in names_in(layout.runs) if left else ():
        if name.startswith("."):
            continue
        run = Run(layout, name)
        record = run.record
        has = left & set(record.get("gpus") or ())
        if has and record.get("status") not in ENDED and alive(run.supervisor):
            found.update(dict.fromkeys(has, run.spec or {}))
    return found


def run_words(holder: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """``job.sft run 3``, for a run of another state or project with ``of PROJECT``."""
    words = f"{holder.get('address')} run {holder.get('number')}"
    same = all(holder.get(name) == mine.get(name) for name in ("lineage", "project"))
    return words if same else f"{words} of {holder.get('project')}"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and 3 more``: each once."""
    each: List[str] = list(dict.fromkeys(names))
    more = len(each) - _NAMED
    if more > 0:
        return f"{', '.join(each[:_NAMED])} and {more} more"
    return " and ".join(each)
