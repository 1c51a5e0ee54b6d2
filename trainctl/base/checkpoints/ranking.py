"""Which of several complete checkpoints is the newest, and which retention deletes: one rule for nodes and operators.

Directories with a step come before other directories, and those before loose files; then the time of the last write decides.
"""

from __future__ import annotations

import re
from typing import (
    Any,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

LOOSE = "."
"""The name of the checkpoint that the files beside all directories make."""

TRAINER_STATE = "trainer_state.json"
_LOG_OR_TEXT = re.compile(
    r"(?:^|/)events\.out\.tfevents[^/]*$|\.(?:log|wandb|txt|json|jsonl|csv|tsv|ya?ml|toml|md|out|err)$",
    re.IGNORECASE,
)

CheckpointRow = Mapping[str, Any]
_RowT = TypeVar("_RowT", bound=CheckpointRow)
_RunT = TypeVar("_RunT")


class Retention(NamedTuple):
    """Which checkpoints to keep: the newest ``keep_last``, and those whose step ``keep_every`` divides; all without rules."""

    keep_last: Optional[int] = None
    keep_every: Optional[int] = None

    def keeps(self, step: int) -> bool:
        """Whether a checkpoint is kept for its step."""
        return self.keep_every is not None and step % self.keep_every == 0


def is_loadable(files: Collection[str]) -> bool:
    """Whether a trainer could resume from such files: one of them at least is neither a log nor text."""
    return any(path.endswith(TRAINER_STATE) or not _LOG_OR_TEXT.search(path) for path in files)


def checkpoint_class(row: CheckpointRow) -> int:
    """2 for a directory with a step, 1 for another directory, 0 for loose files."""
    return 0 if row["name"] == LOOSE else 1 if row.get("step") is None else 2


def recency_key(row: CheckpointRow) -> Tuple[int, float, int, str]:
    """Sort key of the checkpoints of one job, the newest last."""
    return (checkpoint_class(row), *age_key(row))


def age_key(row: CheckpointRow) -> Tuple[float, int, str]:
    """Sort key by time alone: of the last write, then step and name."""
    return float(row["created_at"]), int(row.get("step") or 0), str(row["name"])


def _newest_common(rows: Sequence[CheckpointRow]) -> Optional[str]:
    """Name of the newest checkpoint that all ranks have which have any of the best kind.

    A rank that was killed while it wrote may lack what the others have completed.
    """
    ordered = sorted(rows, key=recency_key)
    best = [row for row in ordered if checkpoint_class(row) == checkpoint_class(ordered[-1])]
    ranks = {int(row["rank"]) for row in best}
    of_name: Dict[str, Set[int]] = {}
    for row in best:
        of_name.setdefault(row["name"], set()).add(int(row["rank"]))
    return next((row["name"] for row in reversed(best) if of_name[row["name"]] == ranks), None)


def newest_checkpoint(runs: Mapping[_RunT, Sequence[_RowT]]) -> Optional[Tuple[_RunT, List[_RowT]]]:
    """Of the checkpoints of a job's runs the newest: its run, and each rank's part of it; None if there are none."""
    some = {run: rows for run, rows in runs.items() if rows}
    if not some:
        return None
    run = max(some, key=lambda one: max(map(recency_key, some[one])))
    name = _newest_common(some[run]) or max(some[run], key=recency_key)["name"]
    ranks = [row for row in some[run] if row["name"] == name]
    return run, sorted(ranks, key=lambda row: int(row["rank"]))


def expired_checkpoints(
    rows: Sequence[_RowT], retention: Retention, leased: Collection[Tuple[int, str]] = ()
) -> List[_RowT]:
    """Of the complete checkpoints of a run those that retention deletes, rank by rank.

    Only checkpoints with a step are ever deleted: others may be logs, exports or copies. The newest, the newest that all
    ranks have, and ``leased`` ones are kept in any case.
    """
    if retention == Retention():
        return []
    ranks: Dict[int, List[_RowT]] = {}
    for row in sorted(rows, key=recency_key):
        if row.get("step") is not None and row["name"] != LOOSE:
            ranks.setdefault(int(row["rank"]), []).append(row)
    common = _newest_common(rows) if ranks else None
    return [
        row
        for rank, ordered in ranks.items()
        for row in ordered[: -max(1, retention.keep_last or 1)]
        if not retention.keeps(int(row["step"]))
        and row["name"] != common
        and (rank, row["name"]) not in leased
    ]
