"""Checkpoints of a run: which there are, where they can be had, and bringing what was left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainctl.base.checkpoints.ranking import standing
from trainctl.errors import NodeError, NodeUnreachable, UsageError
from trainctl.model.reports import Artifact, Away, Checkpoint, away_of
from trainctl.operations.runs import Run, control
from trainctl.operations.workspace import Workspace
from trainctl.resources.checkpoints import Checkpoints

_KNOWN = (
    "name", "rank", "step", "bytes", "files", "created_at", "state", "url", "type", "base_model", "lora_rank",
    "left_out", "tensors", "parameters", "dtypes",
)  # fmt: skip

_AT_ONCE = 8
"""How many runs are asked about at the same time."""


def checkpoints_of(workspace: Workspace, run: Run) -> Checkpoints:
    """A way to a run's checkpoints, where they are kept and where they were made."""
    return Checkpoints(
        control(workspace), workspace.checkpoints, run.job.address, run.project, run.record
    )


def complete_rows(workspace: Workspace, run: Run) -> list[dict[str, Any]]:
    """What is known of each complete checkpoint of a run. NodeUnreachable if of some rank nobody can tell."""
    rows = checkpoints_of(workspace, run).rows()
    return [row for row in rows if row["state"] == "complete"]


def known_checkpoints(workspace: Workspace, run: Run) -> tuple[list[Checkpoint], tuple[Away, ...]]:
    """Those of which somebody can tell, and the nodes that keep others back; NodeUnreachable if nobody answers."""
    rows, away = checkpoints_of(workspace, run).survey()
    return _ordered(rows, run), away


def all_known(
    workspace: Workspace, runs: Sequence[Run]
) -> tuple[list[Checkpoint], tuple[Away, ...]]:
    """As ``known_checkpoints``, of several runs that are asked about at once, in their order; a node that is away is named once."""

    def ask(run: Run) -> tuple[list[Checkpoint], tuple[Away, ...], NodeUnreachable | None]:
        try:
            return *known_checkpoints(workspace, run), None
        except NodeUnreachable as error:
            silent = {rank.rank: error for rank in run.record.ranks}
            return [], away_of(run.record, silent), error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoints") as pool:
        answers = list(pool.map(ask, runs))
    if all(error is not None for _, _, error in answers):
        raise next(error for _, _, error in answers if error is not None)
    away = dict.fromkeys(one for _, missing, _ in answers for one in missing)
    return [one for found, _, _ in answers for one in found], tuple(away)


def choose(rows: list[dict[str, Any]], run: Run, name: str | None, rank: int) -> dict[str, Any]:
    """The row that is meant: the newest complete one of a rank, or the one of that name; UsageError says what there is."""
    complete = [row for row in rows if row["rank"] == rank and row["state"] == "complete"]
    candidates = [row for row in complete if name in (None, row["name"])]
    if not candidates:
        known = ", ".join(sorted({_label(row) for row in rows})) or "none"
        what = f"complete checkpoint {name}" if name else "complete checkpoint"
        raise UsageError(
            f"run {run.record.id} of {run.job.address} has no {what} of rank {rank}",
            f"It has: {known}.",
            code="no-such-checkpoint",
        )
    return max(candidates, key=standing)


def artifacts(
    workspace: Workspace, run: Run, name: str | None, expires_seconds: int
) -> list[Artifact]:
    """Every file of the run's complete checkpoints, or of the named one, each with a URL from which it can be had."""
    way = checkpoints_of(workspace, run)
    rows = way.rows(brief=False)
    complete = [row for row in rows if row["state"] == "complete" and name in (None, row["name"])]
    if not complete:
        choose(rows, run, name, 0)  # says what there is
    return [
        Artifact(
            url=way.url(file["key"], expires_seconds),
            path=file["path"] if row["name"] == "." else f"{row['name']}/{file['path']}",
            rank=row["rank"],
            bytes=file["size"],
            modified=file["modified"] / 1e9,
        )
        for row in complete
        for file in row["files"]
    ]


def upload(workspace: Workspace, run: Run) -> Mapping[str, Any]:
    """Bring what an ended run left behind to the store; how it stands: ``{state, error, pending}``."""
    return checkpoints_of(workspace, run).upload()


def checkpoint_from(row: Mapping[str, Any], run: Run) -> Checkpoint:
    """A row as a value. NodeError for a name that would lead elsewhere: it becomes a directory here."""
    name = str(row["name"])
    if name in ("", "..") or "/" in name:
        raise NodeError(
            f"{row.get('node') or 'the store'} names a checkpoint {name!r}", "That is no file name."
        )
    known = {key: row[key] for key in _KNOWN if key in row}
    made_by = {"job": str(run.job.address), "run": run.record.id}
    return Checkpoint(**{**made_by, "step": None, **known})


def _ordered(rows: Iterable[Mapping[str, Any]], run: Run) -> list[Checkpoint]:
    found = [checkpoint_from(row, run) for row in rows]
    return sorted(found, key=lambda one: (one.rank, one.created_at, one.step or 0, one.name))


def _label(row: Mapping[str, Any]) -> str:
    return str(row["name"]) if row["state"] == "complete" else f"{row['name']} ({row['state']})"
