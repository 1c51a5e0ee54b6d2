"""Putting one observed run's record among the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def merge_outputs(outputs: Json, observed: Json) -> Json:
    """Recorded outputs with what was observed; records of ``runs``, and ``run``, go in by their ids.

    The same object if nothing changes.
    """
    changes = {name: value for name, value in observed.items() if name not in ("run", "runs")}
    seen = [*(observed.get("runs") or ()), observed.get("run")]
    runs = list(outputs.get("runs") or ())
    for run in seen:
        if isinstance(run, Mapping):
            runs = _with_run(runs, run)
    if runs:
        changes["runs"] = runs
    if all(name in outputs and outputs[name] == value for name, value in changes.items()):
        return outputs
    return {**outputs, **changes}


def newest_run(outputs: Json) -> Json | None:
    """The newest run's record, if there is one."""
    runs = outputs.get("runs")
    return runs[-1] if isinstance(runs, list) and runs and isinstance(runs[-1], Mapping) else None


def _with_run(runs: list[Any], run: Json) -> list[Any]:
    for index, known in enumerate(runs):
        if isinstance(known, Mapping) and known.get("id") == run.get("id"):
            if _is_older(run, known):
                return runs
            return [*runs[:index], {**run, **_wish(run, known)}, *runs[index + 1 :]]
    return [*runs, run]


def _is_older(run: Json, known: Json) -> bool:
    """Whether a look that arrives now was made before what is known: an end is final within its generation."""
    generation, known_generation = run.get("generation") or 0, known.get("generation") or 0
    if generation != known_generation:
        return bool(generation < known_generation)
    return known.get("ended_at") is not None and run.get("ended_at") is None


def _wish(run: Json, known: Json) -> Json:
    """That somebody wanted its end stays, also where a look that arrives now was begun before."""
    same = run.get("generation") == known.get("generation")
    return {"stop_asked": True} if same and known.get("stop_asked") else {}
