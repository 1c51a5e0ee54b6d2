"""What a run uses and has used."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainctl.errors import NodeUnreachable
from trainctl.model.metrics import Sample
from trainctl.model.reports import Away, away_of
from trainctl.operations.runs import Run, check_rank, control, refresh_all
from trainctl.operations.workspace import Workspace

POLL_SECONDS = 2.0
"""How often a run that is watched is looked at; its node takes a sample every 10 s."""

_AT_ONCE = 16
"""How many nodes are asked at the same time."""


@dataclass(frozen=True, slots=True)
class Look:
    """A run with samples of its ranks, by time, and the nodes that could not be asked."""

    run: Run
    samples: list[Sample]
    away: tuple[Away, ...]


def look(
    workspace: Workspace,
    run: Run,
    only: int | None = None,
    since: Mapping[int, float] | None = None,
) -> Look:
    """The run as it stands, and the samples of all ranks, or of one; ``since`` are the times of those of each rank that are known already.

    NodeUnreachable if nobody can be asked. Where some can't, the run is as it was last seen.
    """
    check_rank(run, only)
    run, problem = refresh_all(workspace, [run])[0]
    if problem is not None and not isinstance(problem, NodeUnreachable):
        raise problem
    wanted = [one.rank for one in run.record.ranks if only in (None, one.rank)]
    runs, known = control(workspace), since or {}

    def ask(rank: int) -> list[Sample] | NodeUnreachable:
        try:
            node, rows = runs.metrics(run.record, rank, known.get(rank, 0.0))
        except NodeUnreachable as error:
            return error
        return [Sample.of(rank, node, row) for row in rows]

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="metrics") as pool:
        told = dict(zip(wanted, pool.map(ask, wanted), strict=True))
    silent = {rank: one for rank, one in told.items() if isinstance(one, NodeUnreachable)}
    if silent and len(silent) == len(wanted):
        raise next(iter(silent.values()))
    samples = [sample for one in told.values() if isinstance(one, list) for sample in one]
    samples.sort(key=lambda one: (one.time, one.rank))
    return Look(run, samples, away_of(run.record, silent))


def watch(
    workspace: Workspace, run: Run, only: int | None = None
) -> Iterator[tuple[Run, list[Sample]]]:
    """The run and its new samples, again and again until it has ended; the first time all there are."""
    known: dict[int, float] = {}
    while True:
        try:
            seen = look(workspace, run, only, known)
        except NodeUnreachable as error:
            workspace.tell(f"{error.summary}; trying again")
        else:
            for one in seen.away:
                workspace.tell(f"{one.why}; trying again")
            run = seen.run
            known |= {one.rank: one.time for one in seen.samples}
            yield run, seen.samples
            if not run.record.status.live:
                return
        time.sleep(POLL_SECONDS)
