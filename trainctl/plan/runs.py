"""A job's newest run, as plans speak of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.model.address import Kind
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
    return _told(run, subject.before)


def begun_run(subject: Subject, carried_on: str = "") -> LiveRun | None:
    """The newest live run of attempts that nobody recorded, but for the one with the key that a change carries on: any other
    change of this job would stop it."""
    live = [run for run in subject.begun if run.status.live and run.key != carried_on]
    if not live:
        return None
    inputs = next((one.inputs for one in subject.attempts if one.key == live[-1].key), {})
    return _told(live[-1], inputs.get("attributes") or {})


def _told(run: RunRecord, attributes: Mapping[str, Any]) -> LiveRun:
    gpus = gpu_count(attributes.get("compute"))
    ranks = max(len(run.ranks), 1)
    return LiveRun(run.id, run.number, run.started_at or run.created_at, ranks, gpus * ranks)


def gpu_count(compute: Any) -> int:
    """GPUs of one node that a job's ``compute`` names: 8 of ``H100:8``, 0 of none."""
    accelerator = compute.get("accelerator") if isinstance(compute, Mapping) else None
    if isinstance(accelerator, Mapping):
        count = accelerator.get("count", 1)
        return count if isinstance(count, int) else 1
    if not isinstance(accelerator, str) or not accelerator:
        return 0
    count = accelerator.rpartition(":")[2]
    return int(count) if count.isdecimal() else 1


def node_count(compute: Any) -> int:
    """The nodes that a job's ``compute`` asks for; 1 where it doesn't say."""
    count = compute.get("node_count") if isinstance(compute, Mapping) else None
    return count if isinstance(count, int) and count > 0 else 1


def news(subject: Subject, run: RunRecord) -> str:
    """One line if the run has ended since it was recorded, else nothing."""
    recorded = subject.recorded.outputs.get("runs") if subject.recorded else None
    if not recorded or run.status not in ENDED:
        return ""
    if RunStatus(recorded[-1].get("status", RunStatus.CREATED)) is run.status:
        return ""
    return f"run {run.number} {ENDED[run.status]}"
