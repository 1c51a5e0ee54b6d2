"""A job's newest run, and attempts whose end nobody recorded: they are resumed if the same is still wanted, else undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainctl.base.json import digest
from trainctl.ledger.state import Intent
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.diff import plain
from trainctl.plan.graph import REMOVES
from trainctl.plan.resource_context import ResourceContext
from trainctl.plan.values import AffectedRun, Change

ENDED = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.DEPLOY_FAILED: "could not be deployed",
    RunStatus.STOPPED: "was stopped",
    RunStatus.LOST: "was lost",
}
"""How a run ended, in words that follow "run 3"."""


def live_run(subject: ResourceContext) -> AffectedRun | None:
    """The run that a change of this job would stop, if there is one."""
    run = subject.newest_run if subject.address.kind is Kind.JOB else None
    if run is None or not run.status.live:
        return None
    return _describe_run(run, JobSpec.from_attributes(subject.before))


def unrecorded_run(subject: ResourceContext, resumed_key: str = "") -> AffectedRun | None:
    """The newest live run of attempts that nobody recorded, but for the one with the key that a change carries on: any other
    change of this job would stop it."""
    live = [run for run in subject.unrecorded_runs if run.status.live and run.key != resumed_key]
    if not live:
        return None
    attempts = (attempt.attributes for attempt in subject.attempts if attempt.key == live[-1].key)
    return _describe_run(live[-1], JobSpec.from_attributes(next(attempts, {})))


def _describe_run(run: RunRecord, job: JobSpec) -> AffectedRun:
    ranks = max(len(run.ranks), 1)
    gpus = (job.compute.gpus or 0) * ranks
    return AffectedRun(run.id, run.number, run.started_at or run.created_at, ranks, gpus)


def run_end_note(subject: ResourceContext, run: RunRecord) -> str:
    """One line if the run has ended since it was recorded, else nothing."""
    recorded = subject.recorded.outputs.get("runs") if subject.recorded else None
    if not recorded or run.status not in ENDED:
        return ""
    if RunStatus(recorded[-1].get("status", RunStatus.CREATED)) is run.status:
        return ""
    return f"run {run.number} {ENDED[run.status]}"


_REMOVING = frozenset(action.name.lower() for action in REMOVES)
UNDOES_ATTEMPT = "an interrupted attempt is rolled back first"
RESUMES_ATTEMPT = "resumes an earlier attempt"


def is_attempt_at(intent: Intent | None, after: Mapping[str, Any]) -> bool:
    """Whether the interrupted attempt was one to make these very values so."""
    if intent is None or intent.action in _REMOVING:
        return False
    return digest(plain(intent.inputs.get("attributes"))) == digest(plain(after))


def with_resumed_attempt(subject: ResourceContext, change: Change) -> Change:
    """The change, with the key of an earlier attempt at the same, if there was one, and with the live run that it would stop
    as another attempt began it."""
    if change.action is Action.NOOP:
        return change
    same = next((attempt for attempt in subject.attempts if has_same_effect(attempt, change)), None)
    undone = unrecorded_run(subject, same.key if same else "")
    change = replace(change, stops=undone or change.stops)
    if same is None:
        return replace(change, note=change.note or UNDOES_ATTEMPT) if subject.intent else change
    reason = ActionReason.INTERRUPTED if change.action is Action.CREATE else None
    note = change.note or RESUMES_ATTEMPT
    return replace(change, resumes=same.key, reason=change.reason or reason, note=note)


def plan_cleanup(subject: ResourceContext) -> Change | None:
    """The removal of what earlier attempts may have left of something that nobody wants and nobody recorded."""
    if not subject.attempts:
        return None
    intent = subject.attempts[0]
    return Change(
        address=subject.address,
        action=Action.DELETE,
        provider=intent.provider,
        reason=ActionReason.INTERRUPTED,
        before=plain(intent.attributes),
        depends_on=intent.depends_on,
        seen=subject.seen,
        note="leftovers of an interrupted attempt are removed",
    )


def has_same_effect(intent: Intent, change: Change) -> bool:
    """Whether an attempt was one at this very change, so that making it with the attempt's key has one effect in all."""
    if change.action in REMOVES:
        return intent.action in _REMOVING
    starts_run, started_run = change.action is not Action.UPDATE, intent.action != "update"
    if change.address.kind is Kind.JOB and starts_run is not started_run:
        return (
            False  # a run that may have been started is not carried on by a change that starts none
        )
    return is_attempt_at(intent, change.after or {})
