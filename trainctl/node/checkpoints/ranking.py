"""Which of several complete checkpoints is the newest, and which of them count. One rule, for nodes and for operators.

Trainers write logs, exports and copies beside their checkpoints. See DESIGN.md, "Checkpoints".
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

LOOSE = "."

LOGS, TEXT = "logs", "text"
"""Types of checkpoints in which there is nothing that a trainer could load."""

Row = Mapping[str, Any]
_Row = TypeVar("_Row", bound=Row)
_Run = TypeVar("_Run")
_LOGS, _TEXT, _LOOSE, _NO_STEP, _STEP = range(5)


def kind(one: Row) -> int:
    """What comes before what, whenever it was written: those with a step, other directories, loose files, and what can't be loaded."""
    if one.get("type") in (LOGS, TEXT):
        return _LOGS if one["type"] == LOGS else _TEXT
    if one["name"] == LOOSE:
        return _LOOSE
    return _NO_STEP if one.get("step") is None else _STEP


def standing(one: Row) -> Tuple[int, float, int, str]:
    """What sorts checkpoints of one job, the newest last: their kind, when they were last written to, step and name."""
    return (kind(one), *age(one))


def age(one: Row) -> Tuple[float, int, str]:
    """What sorts them by time alone: when they were last written to, then their step and name."""
    return float(one["created_at"]), int(one.get("step") or 0), str(one["name"])


def counts(one: Row) -> bool:
    """Whether it may take another's place: it is a directory, and holds something to load."""
    return kind(one) > _LOOSE


def contenders(found: Sequence[_Row]) -> List[_Row]:
    """Of a run's checkpoints those among which retention chooses, oldest first: those with a step, or all that count if none has one."""
    ordered = sorted(filter(counts, found), key=standing)
    return [one for one in ordered if kind(one) == kind(ordered[-1])]


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


def newest(
    runs: Mapping[_Run, Sequence[_Row]], name: Optional[str] = None
) -> Optional[Tuple[_Run, List[_Row]]]:
    """Of the checkpoints of a job's runs the newest, or that of a name: whose it is, and what each rank has of it; None if there are none.

    Nobody goes on from logs who doesn't name them.
    """
    meant = {
        run: [one for one in found if (one["name"] == name if name else kind(one) > _LOGS)]
        for run, found in runs.items()
    }
    some = {run: found for run, found in meant.items() if found}
    if not some:
        return None
    run = max(some, key=lambda one: max(map(standing, some[one])))
    chosen = newest_of_all(some[run]) or max(some[run], key=standing)["name"]
    ranks = [one for one in some[run] if one["name"] == chosen]
    return run, sorted(ranks, key=lambda one: int(one["rank"]))
