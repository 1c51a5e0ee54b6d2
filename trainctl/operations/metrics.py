"""What a run uses and has used."""

from __future__ import annotations

import time
from collections.abc import Iterator

from trainctl.errors import NodeUnreachable
from trainctl.model.metrics import Sample
from trainctl.operations.runs import Run, check_rank, control, refresh
from trainctl.operations.workspace import Workspace

POLL_SECONDS = 2.0
"""How often a run that is watched is looked at; its node takes a sample every 10 s."""


def history(
    workspace: Workspace, run: Run, since: dict[int, float] | None = None, only: int | None = None
) -> list[Sample]:
    """The samples of all ranks, or of one, by time; ``since`` are the times of those of each rank that are known already."""
    runs, known = control(workspace), since or {}
    check_rank(run, only)
    found = []
    for rank in run.record.ranks:
        if only not in (None, rank.rank):
            continue
        node, rows = runs.metrics(run.record, rank.rank, known.get(rank.rank, 0.0))
        found += [Sample.of(rank.rank, node, row) for row in rows]
    return sorted(found, key=lambda one: (one.time, one.rank))


def watch(
    workspace: Workspace, run: Run, only: int | None = None
) -> Iterator[tuple[Run, list[Sample]]]:
    """The run and its new samples, again and again until it has ended; the first time all there are."""
    known: dict[int, float] = {}
    while True:
        try:
            run = refresh(workspace, run)
            new = history(workspace, run, known, only)
        except NodeUnreachable as error:
            workspace.tell(f"{error.summary}; trying again")
        else:
            known |= {one.rank: one.time for one in new}
            yield run, new
            if not run.record.status.live:
                return
        time.sleep(POLL_SECONDS)
