"""The record of a run, from what its nodes report of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from trainctl.base.protocol.runs import RootCause, RunReport, UploadStatus
from trainctl.model.run import RankRecord, RunRecord, RunStatus

_LIVE_FIRST = (
    RunStatus.RUNNING,
    RunStatus.DEPLOYING,
    RunStatus.CREATED,
    RunStatus.PENDING,
    RunStatus.FAILED,
    RunStatus.DEPLOY_FAILED,
    RunStatus.LOST,
    RunStatus.STOPPED,
    RunStatus.COMPLETED,
)
"""A run goes on as long as one of its ranks does; then it is what its worst rank is, and has completed when all of them have."""


def with_status(run: RunRecord, answers: Sequence[RunReport | None]) -> RunRecord:
    """The run's record with what its nodes said of its ranks, in rank order; None where a node knows nothing of it."""
    ranks = tuple(_rank(rank, answer) for rank, answer in zip(run.ranks, answers, strict=True))
    known = [answer for answer in answers if answer]
    root_cause = next((answer["root_cause"] for answer in known if answer.get("root_cause")), None)
    started, ended = _times("started_at", answers), _times("ended_at", answers)
    status = min((rank.status for rank in ranks), key=_LIVE_FIRST.index, default=run.status)
    # The others would wait for a rank that is lost for ever.
    hopeless = not started and any(rank.status is RunStatus.LOST for rank in ranks)
    # Nobody has stopped ranks that lost each other, as by an outage that is over.
    disconnected = (
        status is RunStatus.STOPPED and root_cause and root_cause["status"] == RunStatus.LOST
    )
    if hopeless or (disconnected and not run.stop_requested):
        status = RunStatus.LOST
    elif run.stop_requested and status is RunStatus.LOST and _any_stopped(ranks):
        status = RunStatus.STOPPED  # what isn't there any more was to end as well
    was_stopped = status is RunStatus.STOPPED and (run.stop_requested or _stopped(root_cause))
    if was_stopped:
        ranks = tuple(map(_ended_together, ranks, answers))
    phases = dict(run.phases)
    unknown = (
        None if known else run.error
    )  # an attempt that failed is no error of a run that completed
    over = not status.live and bool(ended) and len(ended) == len(ranks)
    if over and started:
        phases["running"] = round(max(0.0, ended[0] - started[0]), 3)  # clocks may be set back
    return replace(
        run,
        ranks=ranks,
        status=status,
        started_at=started[0] if started else run.started_at,
        ended_at=ended[0] if over else run.ended_at,
        error=None if was_stopped else _run_error(known, root_cause, len(ranks)) or unknown,
        blamed=root_cause["rank"] if root_cause else None,
        phases=phases,
        cause=next((answer["cause"] for answer in known if answer.get("cause")), None),
        waiting=next((answer["waiting"] for answer in known if answer.get("waiting")), None),
        loaded=next((tuple(one) for answer in known if (one := answer.get("loaded"))), run.loaded),
        sync=_worst_sync([answer["sync"] for answer in known if answer.get("sync")]) or run.sync,
        retries=max((answer.get("retries") or 0 for answer in known), default=run.retries),
    )


def _any_stopped(ranks: Sequence[RankRecord]) -> bool:
    return any(rank.status is RunStatus.STOPPED for rank in ranks)


def _stopped(root_cause: RootCause | None) -> bool:
    return root_cause is not None and root_cause["status"] == RunStatus.STOPPED


def _ended_together(rank: RankRecord, answer: RunReport | None) -> RankRecord:
    """Of a run that was stopped: a rank that heard nothing of another any more takes that for lost."""
    root_cause = answer.get("root_cause") if answer else None
    if rank.error is None or not root_cause or root_cause["status"] != RunStatus.LOST:
        return rank
    return replace(rank, error=f"ended with rank {root_cause['rank']}")


def with_partial_status(run: RunRecord, answers: Mapping[int, RunReport | None]) -> RunRecord:
    """The run's record with what the nodes of some ranks said of these; all that is decided by every rank is as it was."""
    return replace(
        run,
        ranks=tuple(
            _rank(rank, answers[rank.rank]) if rank.rank in answers else rank for rank in run.ranks
        ),
    )


def _times(
    name: Literal["started_at", "ended_at"], answers: Sequence[RunReport | None]
) -> list[float]:
    """A time of every rank that tells it, in rank order: of a run the first one counts, as clocks of different hosts don't compare."""
    return [time for answer in answers if answer and (time := answer.get(name))]


def are_lost(unanswered: Collection[int], answers: Sequence[RunReport | None]) -> bool:
    """Whether those that can't be asked are lost: the others have ended, and say so of one of them."""
    told = [answer for answer in answers if answer]
    blamed = {root_cause["rank"] for answer in told if (root_cause := answer.get("root_cause"))}
    ended = all(not RunStatus(answer["status"]).live for answer in told)
    return bool(told) and ended and len(unanswered) == 1 and bool(blamed & set(unanswered))


def _run_error(known: Sequence[RunReport], root_cause: RootCause | None, ranks: int) -> str | None:
    """What went wrong, where it began: of several ranks that is named."""
    if root_cause is None or not root_cause["error"]:
        return next((answer["error"] for answer in known if answer.get("error")), None)
    error = root_cause["error"]
    if ranks == 1 or error.startswith("rank "):
        return error
    if root_cause["status"] == RunStatus.LOST:
        return f"rank {root_cause['rank']} {error}"
    return f"rank {root_cause['rank']}: {error}"


def _worst_sync(found: Sequence[UploadStatus]) -> UploadStatus | None:
    """Of how uploads stand, the one that is not done or in trouble."""
    return max(
        found, key=lambda one: (one["state"] != "COMPLETED", bool(one.get("error"))), default=None
    )


def _rank(rank: RankRecord, answer: RunReport | None) -> RankRecord:
    if answer is None:
        return replace(rank, status=RunStatus.LOST if rank.status.live else rank.status)
    status = RunStatus(answer["status"])
    if status is RunStatus.CREATED and not answer["supervised"]:
        status = RunStatus.LOST  # who was to start it is dead, and nobody else will
    root_cause = answer.get("root_cause")
    error = answer.get("error") if root_cause and root_cause["rank"] != rank.rank else None
    return replace(rank, status=status, exit_code=answer.get("exit_code"), error=error)
