"""Starting the ranks of a run, which then begin together or not at all, whether or not anybody is there to see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainctl.apply.step import Step
from trainctl.base.protocol.runs import START, STOP, Started, StartRequest, StopRequest
from trainctl.errors import Busy, NodeUnreachable, TrainctlError
from trainctl.jobs.environment import RunPlaces
from trainctl.model.run import RunRecord, RunStatus
from trainctl.remote.agent import NodeAgent
from trainctl.resources.delivery import Seat
from trainctl.resources.images import PulledImage
from trainctl.resources.run_control import RunControl
from trainctl.resources.runs import with_status
from trainctl.spi.provider import Node

_POLL_SECONDS = 0.2
_GOES_ON = "Its run may go on there: trainctl status. Apply again: it is carried on."
_ON_THE_WAY = frozenset({RunStatus.CREATED, RunStatus.DEPLOYING})


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank on its node."""

    number: int
    seat: Seat
    where: RunPlaces

    @property
    def node(self) -> Node:
        """The node."""
        return self.seat.node

    @property
    def agent(self) -> NodeAgent:
        """How it is asked."""
        return self.seat.agent


@dataclass(frozen=True, slots=True)
class Equipped:
    """A rank whose node has what it needs: the archive of its code, environment, image."""

    rank: Rank
    archive: str
    venv: str | None
    image: PulledImage | None


def start_together(
    step: Step,
    control: RunControl,
    run: RunRecord,
    ranks: Sequence[Rank],
    requests: Sequence[StartRequest],
    mask: Callable[[str], str],
) -> RunRecord:
    """Start every rank; the run's record once all of them run, wait in a queue, or have ended.

    Rank 0 comes first: the others are started with what it says of where it listens, of which ``mask`` hides the token. May be
    repeated: a rank that was started before is left as it is.
    """
    try:
        first = _start(step, ranks[0], requests[0])
        if len(ranks) == 1:
            return with_status(run, [first])
        meeting = first["meeting"]
        if meeting:
            mask(meeting["token"])
        others = [
            (rank, StartRequest(**request, meeting=meeting))
            for rank, request in _rest(ranks, requests)
        ]
        with ThreadPoolExecutor(len(others), thread_name_prefix="start") as pool:
            answers = [pool.submit(_start, step, rank, request) for rank, request in others]
            run = with_status(run, [first, *(answer.result() for answer in answers)])
        return _settled(step, control, run)
    except NodeUnreachable as error:
        error.detail = f"{error.detail} {_GOES_ON}".lstrip()
        raise  # nobody can be asked
    except Busy:
        raise  # a newer attempt has the run, and what it started is its own
    except TrainctlError:
        for rank in ranks:
            _make_sure_it_ended(rank, run)
        raise


def _rest(
    ranks: Sequence[Rank], requests: Sequence[StartRequest]
) -> list[tuple[Rank, StartRequest]]:
    return list(zip(ranks, requests, strict=True))[1:]


def _start(step: Step, rank: Rank, request: StartRequest) -> Started:
    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("waiting"):
            step.progress(str(event["waiting"]), 0, 0)

    return rank.agent.call(START, request, on_event=on_event)


def _settled(step: Step, control: RunControl, run: RunRecord) -> RunRecord:
    """The run once its ranks have found each other, and what is left to do before its commands begin is done."""
    run = control.status(run)
    while any(rank.status in _ON_THE_WAY for rank in run.ranks) and run.status.live:
        if run.waiting:
            step.progress(run.waiting, 0, 0)
        step.cancelled.wait(_POLL_SECONDS)
        step.stop_if_cancelled()
        run = control.status(run)
    return run


def _make_sure_it_ended(rank: Rank, run: RunRecord) -> None:
    """Whoever reads that a run could not be deployed starts another; this one may have been started before the error."""
    request = StopRequest(root=rank.node.root, key=run.key, grace_seconds=0)
    try:
        rank.agent.call(STOP, request)
    except TrainctlError as error:
        raise NodeUnreachable(
            f"nobody can tell whether run {run.id} was started", error.summary
        ) from error
