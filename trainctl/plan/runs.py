"""A job's newest run, as plans speak of it."""

from __future__ import annotations

from trainctl.model.address import Kind
from trainctl.model.job_spec import JobSpec
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.subject import Subject
from trainctl.plan.values import LiveRun

ENDED = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.DEPLOY_FAILED: "could not be deployed",
    RunStatus.STOPPED: "was stopped",
    RunStatus.LOST: "was lost",
}
"""How a run ended, in words that follow "run 3"."""


def live_run(subject: Subject) -> LiveRun | None:
    """The run that a change of this job would stop, if there is one."""
    run = subject.newest_run if subject.address.kind is Kind.JOB else None
    if run is None or not run.status.live:
        return None
    return _told(run, JobSpec.from_attributes(subject.before))


def begun_run(subject: Subject, carried_on: str = "") -> LiveRun | None:
    """The newest live run of attempts that nobody recorded, but for the one with the key that a change carries on: any other
    change of this job would stop it."""
    live = [run for run in subject.begun if run.status.live and run.key != carried_on]
    if not live:
        return None
    attempts = (one.attributes for one in subject.attempts if one.key == live[-1].key)
    return _told(live[-1], JobSpec.from_attributes(next(attempts, {})))


def _told(run: RunRecord, job: JobSpec) -> LiveRun:
    ranks = max(len(run.ranks), 1)
    gpus = (job.compute.gpus or 0) * ranks
    return LiveRun(run.id, run.number, run.started_at or run.created_at, ranks, gpus)


def news(subject: Subject, run: RunRecord) -> str:
    """One line if the run has ended since it was recorded, else nothing."""
    recorded = subject.recorded.outputs.get("runs") if subject.recorded else None
    if not recorded or run.status not in ENDED:
        return ""
    if RunStatus(recorded[-1].get("status", RunStatus.CREATED)) is run.status:
        return ""
    return f"run {run.number} {ENDED[run.status]}"
