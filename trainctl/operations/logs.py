"""A run's own lines: of one rank or of all, once or for as long as the run lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from trainctl.errors import NodeForgot, UsageError
from trainctl.operations.runs import Run, control, refresh
from trainctl.operations.streaming import pieces
from trainctl.operations.workspace import Workspace

POLL_SECONDS = 0.5
"""How often a followed log is looked at."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one rank, as the job wrote it, without its line end."""

    rank: int
    text: str


class _Reader:
    """One rank's log from where it was last read; hands out whole lines."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.offset = 0
        self._rest = b""

    def take(self, data: bytes) -> Iterator[LogLine]:
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield self._line(line)

    def end(self) -> Iterator[LogLine]:
        if self._rest:
            yield self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> LogLine:
        return LogLine(self.rank, line.decode("utf-8", "replace").removesuffix("\r"))


def lines(
    workspace: Workspace, run: Run, *, rank: int | None = None, follow: bool = False
) -> Iterator[LogLine]:
    """The lines of a run's log; with ``follow`` those to come, too, until the run has ended."""
    ranks = [one.rank for one in run.record.ranks]
    if rank is not None and ranks and rank not in ranks:
        counted = f"It has {len(ranks)}, counted from 0."
        raise UsageError(f"run {run.record.id} has no rank {rank}", counted, code="no-such-run")
    readers = [_Reader(one) for one in ranks if rank in (None, one)]
    while True:
        live = run.record.status.live
        if follow and live:
            run = refresh(workspace, run)
        for reader in readers:
            yield from _news(workspace, run, reader)
        if not (follow and live):
            break
        if run.record.status.live:
            time.sleep(POLL_SECONDS)
    for reader in readers:
        yield from reader.end()


def _news(workspace: Workspace, run: Run, reader: _Reader) -> Iterator[LogLine]:
    offset, runs = reader.offset, control(workspace)
    try:
        for piece in pieces(lambda take: runs.read_log(run.record, reader.rank, offset, take)):
            yield from reader.take(piece)
    except NodeForgot as error:
        node = next(one.node for one in run.record.ranks if one.rank == reader.rank)
        raise NodeForgot(
            f"{node} knows nothing of run {run.record.number} ({run.record.id}) any more",
            "Its log went with what was deleted there.",
            address=str(run.job.address),
        ) from error
