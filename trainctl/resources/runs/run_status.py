"""Update the record of a run from its nodes' reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from trainctl.base.protocol import INTERRUPTED
from trainctl.base.protocol.runs import RootCause, RunDetails, RunMoment, RunReport
from trainctl.model.run import RankRecord, RunRecord, RunStatus

DetailsT = TypeVar("DetailsT", RunDetails, RunMoment)

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
"""A run is live while any rank is; then it has the status of its worst rank."""


def with_status(run: RunRecord, reports: Sequence[RunReport | None]) -> RunRecord:
    """Return the run with its ranks' reports; None if a node has no such run."""
    ranks = tuple(_rank(rank, report) for rank, report in zip(run.ranks, reports, strict=True))
    known = [report for report in reports if report]
    root_cause = next((report["root_cause"] for report in known if report.get("root_cause")), None)
    started, ended = _times("started_at", reports), _times("ended_at", reports)
    status = min((rank.status for rank in ranks), key=_LIVE_FIRST.index, default=run.status)
    # The other ranks would wait for a lost rank forever.
    hopeless = not started and any(rank.status is RunStatus.LOST for rank in ranks)
    # Ranks that lost their connections, as in an outage, were not stopped by a user.
    disconnected = (
        status is RunStatus.STOPPED and root_cause and root_cause["status"] == RunStatus.LOST
    )
    errors = [report.get("error") for report in known] + [
        root_cause["error"] if root_cause else None
    ]
    interrupted = status is RunStatus.STOPPED and any(
        INTERRUPTED in (text or "") for text in errors
    )
    if hopeless or ((disconnected or interrupted) and not run.stop_requested):
        status = RunStatus.LOST
    elif (
        run.stop_requested
        and status is RunStatus.LOST
        and any(rank.status is RunStatus.STOPPED for rank in ranks)
    ):
        status = RunStatus.STOPPED  # the lost ranks were to be stopped as well
    was_stopped = status is RunStatus.STOPPED and (
        run.stop_requested or (root_cause is not None and root_cause["status"] == RunStatus.STOPPED)
    )
    if was_stopped:
        ranks = tuple(map(_ended_together, ranks, reports))
    phases = dict(run.phases)
    recorded_error = None if known else run.error  # a reported run replaces the recorded error
    over = not status.live and bool(ended) and len(ended) == len(ranks)
    if over and started:
        phases["running"] = round(max(0.0, ended[0] - started[0]), 3)  # clocks may be set back
    return replace(
        run,
        ranks=ranks,
        status=status,
        started_at=started[0] if started else run.started_at,
        ended_at=ended[0] if over else run.ended_at,
        error=None if was_stopped else _run_error(known, root_cause, len(ranks)) or recorded_error,
        blamed=root_cause["rank"] if root_cause else None,
        phases=phases,
        reported=_details(known) if known else run.reported,
        now=_first_of(RunMoment, known),
    )


def _details(known: Sequence[RunReport]) -> RunDetails:
    details = _first_of(RunDetails, known)
    if retries := max(report.get("retries") or 0 for report in known):
        details["retries"] = retries
    if uploads := [report["sync"] for report in known if report.get("sync")]:
        # that of an unfinished upload, preferably with an error
        details["sync"] = max(
            uploads, key=lambda upload: (upload["state"] != "COMPLETED", bool(upload.get("error")))
        )
    return details


def _first_of(kind: type[DetailsT], known: Sequence[RunReport]) -> DetailsT:
    """Return the keys of this type, each from the first report that has a value."""
    values: dict[str, Any] = {}
    for report in map(dict, known):
        for name in kind.__annotations__.keys() - values.keys():
            if report.get(name):
                values[name] = report[name]
    return cast(DetailsT, dict(sorted(values.items())))


def _ended_together(rank: RankRecord, report: RunReport | None) -> RankRecord:
    """Correct the error of a rank in a stopped run that considers another rank lost."""
    root_cause = report.get("root_cause") if report else None
    if rank.error is None or not root_cause or root_cause["status"] != RunStatus.LOST:
        return rank
    return replace(rank, error=f"ended with rank {root_cause['rank']}")


def with_partial_status(run: RunRecord, reports: Mapping[int, RunReport | None]) -> RunRecord:
    """Return the run with some ranks' reports; the run's status stays."""
    return replace(
        run,
        ranks=tuple(
            _rank(rank, reports[rank.rank]) if rank.rank in reports else rank for rank in run.ranks
        ),
    )


def _times(
    name: Literal["started_at", "ended_at"], reports: Sequence[RunReport | None]
) -> list[float]:
    """Return the reported times by rank; the first counts, as clocks differ."""
    return [time for report in reports if report and (time := report.get(name))]


def are_lost(unreachable: Collection[int], reports: Sequence[RunReport | None]) -> bool:
    """Whether an unreachable rank is lost: all others have ended, and one blames it."""
    known = [report for report in reports if report]
    blamed = {root_cause["rank"] for report in known if (root_cause := report.get("root_cause"))}
    ended = all(not RunStatus(report["status"]).live for report in known)
    return bool(known) and ended and len(unreachable) == 1 and bool(blamed & set(unreachable))


def _run_error(known: Sequence[RunReport], root_cause: RootCause | None, ranks: int) -> str | None:
    """Return the error of the root cause, with its rank in a multi-rank run."""
    if root_cause is None or not root_cause["error"]:
        return next((report["error"] for report in known if report.get("error")), None)
    error = root_cause["error"]
    if ranks == 1 or error.startswith("rank "):
        return error
    if root_cause["status"] == RunStatus.LOST:
        return f"rank {root_cause['rank']} {error}"
    return f"rank {root_cause['rank']}: {error}"


def _rank(rank: RankRecord, report: RunReport | None) -> RankRecord:
    if report is None:
        return replace(rank, status=RunStatus.LOST if rank.status.live else rank.status)
    status = RunStatus(report["status"])
    if status is RunStatus.CREATED and not report["supervised"]:
        status = RunStatus.LOST  # its supervisor is dead
    root_cause = report.get("root_cause")
    error = report.get("error") if root_cause and root_cause["rank"] != rank.rank else None
    return replace(
        rank,
        status=status,
        exit_code=report.get("exit_code"),
        error=error,
        host=report.get("host"),
        gpus=len(report.get("gpus") or ()) or rank.gpus,
    )
