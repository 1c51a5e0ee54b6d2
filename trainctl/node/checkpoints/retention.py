"""Checkpoints that retention spares although they are old."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Sequence, Set

from trainctl.base.checkpoints.manifests import CheckpointManifest
from trainctl.node.runs.points import points_of
from trainctl.node.runs.record import ENDED, NodeRun, evaluated_run


def spared_checkpoints(
    run: NodeRun,
    rows: Sequence[CheckpointManifest],
    ranking: Optional[Mapping[str, Any]],
    *,
    ended: bool,
) -> Set[str]:
    """Return the names of checkpoints that are to be evaluated, or may be among the best.

    One without a value may be: nothing was reported at its step or later, or ``JOB`` of ``JOB.KEY`` has not evaluated it.
    All of other ranks than 0 may be: by its own reports each rank would keep parts of other checkpoints.
    """
    names = {row["name"] for row in rows}
    job, _, key = (ranking["metric"] if ranking else "").partition(".")
    spared: Set[str] = set()
    found: Dict[str, Optional[float]] = {}
    for path in run.layout.runs.glob("*/evaluations.json"):
        other = NodeRun(run.layout, path.parent.name)
        spec, evaluated = other.spec, other.evaluations
        if spec is None or evaluated_run(spec) != run.key:
            continue
        if other.record.get("status") not in ENDED:
            spared |= names - {row["name"] for row in evaluated if row["status"] != "queued"}
        if spec["address"].split("[")[0] == f"job.{job}":
            found.update((row["name"], row["values"].get(key)) for row in evaluated)
    if ranking is None:
        return spared
    reported = None
    if not found and not any(row["rank"] for row in rows):
        reported = points_of(run, [ranking["metric"]]).get(ranking["metric"])
    last = math.inf if ended or reported is None else reported.columns()[1][-1]
    finished = [row for row in rows if not row.get("unfinished")]
    values: Dict[str, float] = {}
    for row in sorted(finished, key=lambda row: row.get("step") or 0):
        value = found.get(row["name"])
        if reported is not None and row.get("step") is not None and row["step"] <= last:
            value = reported.value_at(row["step"])
        if value is not None:
            values[row["name"]] = -value if ranking["mode"] == "max" else value
    spared |= {row["name"] for row in finished if row["name"] not in values}
    return spared.union(sorted(values, key=values.__getitem__)[: ranking["count"]])
