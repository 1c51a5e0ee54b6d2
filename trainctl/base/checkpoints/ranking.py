"""Which of several complete checkpoints is the newest, and which of them count. One rule, for nodes and for operators.

Trainers write logs, exports and copies beside their checkpoints. See DESIGN.md, "Checkpoints".
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

LOOSE = "."

LOGS, TEXT = "logs", "text"
"""Types of checkpoints in which there is nothing that a trainer could load."""

Row = Mapping[str, Any]
_Row = TypeVar("_Row", bound=Row)
_Run = TypeVar("_Run")
_HOLDS = (LOGS, TEXT)
_LOOSE, _NO_STEP, _STEP = range(3)
_LOG = re.compile(r"(?:^|/)events\.out\.tfevents[^/]*$|\.(?:log|wandb)$", re.IGNORECASE)
_TEXT = re.compile(r"\.(?:txt|json|jsonl|csv|tsv|ya?ml|toml|md|out|err)$", re.IGNORECASE)
TRAINER_STATE = "trainer_state.json"


def nothing_to_load(files: Collection[str]) -> Optional[str]:
    """LOGS or TEXT for files of which no trainer could go on; None wherever one is of a kind that isn't known: it may be a checkpoint's."""
    found = TEXT if files else None
    for one in files:
        if _LOG.search(one):
            found = LOGS
        elif not _TEXT.search(one) or one.endswith(TRAINER_STATE):
            return None
    return found


def kind(one: Row) -> Tuple[int, int]:
    """What comes before what, whenever it was written: what may be loaded before text, and that before logs; then those with a step, other directories, loose files."""
    holds = _HOLDS.index(one["type"]) if one.get("type") in _HOLDS else len(_HOLDS)
    if one["name"] == LOOSE:
        return holds, _LOOSE
    return holds, _NO_STEP if one.get("step") is None else _STEP


def standing(one: Row) -> Tuple[Tuple[int, int], float, int, str]:
    """What sorts checkpoints of one job, the newest last: their kind, when they were last written to, step and name."""
    return (kind(one), *age(one))


def age(one: Row) -> Tuple[float, int, str]:
    """What sorts them by time alone: when they were last written to, then their step and name."""
    return float(one["created_at"]), int(one.get("step") or 0), str(one["name"])


def counts(one: Row) -> bool:
    """Whether it may take another's place: it is a directory, and holds something to load."""
    return kind(one) > (len(_HOLDS), _LOOSE)


def contenders(found: Sequence[_Row]) -> List[_Row]:
    """Of a run's checkpoints those among which retention chooses, oldest first: those with a step, or all that count if none has one."""
    return list(filter(counts, _leading(found)))


def _leading(found: Sequence[_Row]) -> List[_Row]:
    """Those of the best kind that there is, oldest first."""
    ordered = sorted(found, key=standing)
    return [one for one in ordered if kind(one) == kind(ordered[-1])]


def newest_of_all(found: Sequence[Row]) -> Optional[str]:
    """Of a run's checkpoints of the best kind the name of the newest that each rank has which has any; None if there is none.

    A rank that was killed while it wrote may lack what the others have completed.
    """
    leading = _leading(found)
    ranks = {int(one["rank"]) for one in leading}
    of_name: Dict[str, Set[int]] = {}
    for one in leading:
        of_name.setdefault(one["name"], set()).add(int(one["rank"]))
    return next((one["name"] for one in reversed(leading) if of_name[one["name"]] == ranks), None)


def newest(
    runs: Mapping[_Run, Sequence[_Row]], *, named: bool = False
) -> Optional[Tuple[_Run, List[_Row]]]:
    """Of the checkpoints of a job's runs the newest: whose it is, and what each rank has of it; None if there are none.

    Nobody goes on from logs but who ``named`` them.
    """
    meant = {
        run: [one for one in found if named or one.get("type") != LOGS]
        for run, found in runs.items()
    }
    some = {run: found for run, found in meant.items() if found}
    if not some:
        return None
    run = max(some, key=lambda one: max(map(standing, some[one])))
    name = newest_of_all(some[run]) or max(some[run], key=standing)["name"]
    ranks = [one for one in some[run] if one["name"] == name]
    return run, sorted(ranks, key=lambda one: int(one["rank"]))


def doomed(
    manifests: Sequence[Mapping[str, Any]],
    keep_last: Optional[int],
    keep_every: Optional[int],
    leased: Collection[Tuple[int, str]] = (),
) -> List[Mapping[str, Any]]:
    """Of the complete checkpoints of a run those that count and that neither rule keeps, rank by rank.

    ``keep_last`` keeps the newest so many (one if only the other rule is given), ``keep_every`` those whose step it
    divides. The newest, the newest that all of these ranks have, what is being read, and what doesn't count always stay. Without rules
    everything does.
    """
    if keep_last is None and keep_every is None:
        return []
    ranks: Dict[int, List[Mapping[str, Any]]] = {}
    for one in contenders(manifests):
        ranks.setdefault(int(one["rank"]), []).append(one)
    common = newest_of_all(manifests)
    found: List[Mapping[str, Any]] = []
    for rank, ordered in ranks.items():
        for one in ordered[: -max(1, keep_last or 1)]:
            step = one.get("step")
            divides = keep_every is not None and step is not None and int(step) % keep_every == 0
            if not divides and one["name"] != common and (rank, one["name"]) not in leased:
                found.append(one)
    return found
