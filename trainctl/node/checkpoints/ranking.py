"""Which of several complete checkpoints is the newest, and which of them count. One rule, for nodes and for operators.

Trainers write logs, exports and copies beside their checkpoints. See DESIGN.md, "Checkpoints".
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

LOOSE = "."

Row = Mapping[str, Any]
_Row = TypeVar("_Row", bound=Row)
_Run = TypeVar("_Run")
_LOOSE, _NO_STEP, _STEP = range(3)


def kind(name: str, step: Optional[int]) -> int:
    """What comes before what, whenever it was written: those with a step, other directories, loose files."""
    if name == LOOSE:
        return _LOOSE
    return _NO_STEP if step is None else _STEP


def standing(one: Row) -> Tuple[int, float, int, str]:
    """What sorts checkpoints of one job, the newest last: their kind, when they were last written to, step and name."""
    return (kind(one["name"], one.get("step")), *age(one))


def age(one: Row) -> Tuple[float, int, str]:
    """What sorts them by time alone: when they were last written to, then their step and name."""
    return float(one["created_at"]), int(one.get("step") or 0), str(one["name"])


def contenders(found: Sequence[_Row]) -> List[_Row]:
    """Of a run's checkpoints those that count, oldest first: those with a step, or all directories if none has one."""
    ordered = sorted((one for one in found if one["name"] != LOOSE), key=standing)
    best = standing(ordered[-1])[0] if ordered else _LOOSE
    return [one for one in ordered if standing(one)[0] == best]


def newest_of_all(found: Sequence[Row]) -> Optional[str]:
    """Of a run's checkpoints that count, the name of the newest that each rank has which has any; None if there is none.

    A rank that was killed while it wrote may lack what the others have completed.
    """
    counted = contenders(found)
    ranks = {int(one["rank"]) for one in counted}
    of_name: Dict[str, Set[int]] = {}
    for one in counted:
        of_name.setdefault(one["name"], set()).add(int(one["rank"]))
    return next((one["name"] for one in reversed(counted) if of_name[one["name"]] == ranks), None)


def newest(runs: Mapping[_Run, Sequence[_Row]]) -> Optional[Tuple[_Run, List[_Row]]]:
    """Of the checkpoints of a job's runs the newest: whose it is, and what each rank has of it; None if there are none."""
    some = {run: found for run, found in runs.items() if found}
    if not some:
        return None
    run = max(some, key=lambda one: max(map(standing, some[one])))
    name = newest_of_all(some[run]) or max(some[run], key=standing)["name"]
    ranks = [one for one in some[run] if one["name"] == name]
    return run, sorted(ranks, key=lambda one: int(one["rank"]))
