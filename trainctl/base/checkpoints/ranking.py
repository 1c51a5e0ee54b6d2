"""Find the newest of complete checkpoints, and those that retention deletes.

Directories with a step rank above other directories, and those above loose files; then the later write wins.
"""

from __future__ import annotations

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

from trainctl.base.checkpoints.layout import LOOSE, series

CheckpointRow = Mapping[str, Any]
_RowT = TypeVar("_RowT", bound=CheckpointRow)
_RunT = TypeVar("_RunT")


class Retention(NamedTuple):
    """Checkpoints to keep: the newest, and every so many steps; all by default."""

    keep_last: Optional[int] = None
    keep_every: Optional[int] = None

    def keeps(self, step: int) -> bool:
        """Return whether a checkpoint is kept because of its step."""
        return self.keep_every is not None and step % self.keep_every == 0


def checkpoint_class(row: CheckpointRow) -> int:
    """Return 2 for directories with a step, 1 for others, 0 for loose files."""
    return 0 if row["name"] == LOOSE else 1 if row.get("step") is None else 2


def recency_key(row: CheckpointRow) -> Tuple[int, float, int, str]:
    """Return a sort key for checkpoints of one job, the newest last."""
    return (checkpoint_class(row), *age_key(row))


def age_key(row: CheckpointRow) -> Tuple[float, int, str]:
    """Return a sort key by time of the last write, step and name."""
    return float(row["created_at"]), int(row.get("step") or 0), str(row["name"])


def _newest_common(rows: Sequence[CheckpointRow]) -> Optional[str]:
    """Return the newest checkpoint of the highest class that all its ranks have.

    A rank that was killed while writing may lack the newest of the others.
    """
    ordered = sorted(rows, key=recency_key)
    best = [row for row in ordered if checkpoint_class(row) == checkpoint_class(ordered[-1])]
    ranks = {int(row["rank"]) for row in best}
    ranks_by_name: Dict[str, Set[int]] = {}
    for row in best:
        ranks_by_name.setdefault(row["name"], set()).add(int(row["rank"]))
    return next(
        (row["name"] for row in reversed(best) if ranks_by_name[row["name"]] == ranks), None
    )


def _finished(rows: Sequence[_RowT]) -> List[_RowT]:
    """Return the checkpoints that no rank has unfinished."""
    unfinished = {row["name"] for row in rows if row.get("unfinished")}
    return [row for row in rows if row["name"] not in unfinished]


def newest_checkpoint(runs: Mapping[_RunT, Sequence[_RowT]]) -> Optional[Tuple[_RunT, List[_RowT]]]:
    """Return the run with the newest finished checkpoint, and its rows; None without any."""
    finished = {run: _finished(rows) for run, rows in runs.items()}
    if not any(finished.values()):
        return None
    newest, rows = max(
        finished.items(), key=lambda item: max(map(recency_key, item[1]), default=())
    )
    name = _newest_common(rows) or max(rows, key=recency_key)["name"]
    ranks = [row for row in rows if row["name"] == name]
    return newest, sorted(ranks, key=lambda row: int(row["rank"]))


def expired_checkpoints(
    rows: Sequence[_RowT], retention: Retention, leased: Collection[Tuple[int, str]] = ()
) -> List[_RowT]:
    """Return the complete checkpoints of a run that retention deletes, by rank and series.

    Only checkpoints with a step expire: others may be logs, exports or copies. The newest, the newest that all ranks
    have, and ``leased`` checkpoints are always kept. Unfinished ones don't count, and expire with those of their age.
    """
    if retention == Retention():
        return []
    alike: Dict[Tuple[int, str], List[_RowT]] = {}
    for row in sorted(rows, key=recency_key):
        if row.get("step") is not None and row["name"] != LOOSE:
            alike.setdefault((int(row["rank"]), series(row["name"])), []).append(row)
    finished = _finished(rows)
    kept = {_newest_common(finished)} if finished else set()
    expired = []
    for (rank, _), ordered in alike.items():
        counted = [row for row in ordered if not row.get("unfinished")]
        oldest = counted[-max(1, retention.keep_last or 1) :][:1]
        expired += [
            row
            for row in ordered
            if oldest
            and recency_key(row) < recency_key(oldest[0])
            and (row.get("unfinished") or not retention.keeps(int(row["step"])))
            and row["name"] not in kept
            and (rank, row["name"]) not in leased
        ]
    return expired
