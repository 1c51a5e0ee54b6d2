"""Runs that changes stop; interrupted attempts to resume or roll back."""

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
"""Predicates for "run 3"."""


def live_run(context: ResourceContext) -> AffectedRun | None:
    """Return the live run that a change of this job would stop; None if its machine is gone."""
    is_present = context.address.kind is Kind.JOB and not context.is_missing
    run = context.newest_run if is_present else None
    if run is None or not run.status.live:
        return None
    return _describe_run(run, JobSpec.from_attributes(context.before))


def unrecorded_run(context: ResourceContext, resumed_key: str = "") -> AffectedRun | None:
    """Return the newest live, unrecorded run, except that of a resumed attempt."""
    live = [run for run in context.unrecorded_runs if run.status.live and run.key != resumed_key]
    if not live:
        return None
    attempts = (attempt.attributes for attempt in context.attempts if attempt.key == live[-1].key)
    return _describe_run(live[-1], JobSpec.from_attributes(next(attempts, {})))


def _describe_run(run: RunRecord, job: JobSpec) -> AffectedRun:
    ranks = max(len(run.ranks), 1)
    gpus = (job.compute.gpus or 0) * ranks
    return AffectedRun(run.id, run.number, run.started_at or run.created_at, ranks, gpus)


def run_end_note(context: ResourceContext, run: RunRecord) -> str:
    """Return a note if the run ended since it was recorded, else an empty text."""
    recorded = context.recorded.outputs.get("runs") if context.recorded else None
    if not recorded or run.status not in ENDED:
        return ""
    if RunStatus(recorded[-1].get("status", RunStatus.CREATED)) is run.status:
        return ""
    return f"run {run.number} {ENDED[run.status]}"


_REUSE = Action.REUSE.name.lower()
_REMOVING = frozenset(action.name.lower() for action in REMOVES)
UNDOES_ATTEMPT = "an interrupted attempt is rolled back first"
RESUMES_ATTEMPT = "resumes an earlier attempt"


def is_attempt_at(intent: Intent | None, after: Mapping[str, Any]) -> bool:
    """Whether the interrupted attempt had these values as its goal."""
    if intent is None or intent.action in _REMOVING:
        return False
    return digest(plain(intent.inputs.get("attributes"))) == digest(plain(after))


def with_resumed_attempt(context: ResourceContext, change: Change) -> Change:
    """Add the key of an earlier attempt to resume, and the unrecorded run to stop."""
    if change.action is Action.NOOP:
        return change
    same = next((attempt for attempt in context.attempts if has_same_effect(attempt, change)), None)
    undone = unrecorded_run(context, same.key if same else "")
    change = replace(change, stops=undone or change.stops)
    if same is None:
        return _with_note(change, UNDOES_ATTEMPT) if context.intent else change
    reason = ActionReason.INTERRUPTED if change.action is Action.CREATE else None
    change = replace(change, resumes=same.key, reason=change.reason or reason)
    return _with_note(change, RESUMES_ATTEMPT)


def _with_note(change: Change, note: str) -> Change:
    """Add a note to that of the change, if it isn't there."""
    notes = change.note.split("; ") if change.note else []
    return change if note in notes else replace(change, note="; ".join([*notes, note]))


def plan_cleanup(context: ResourceContext) -> Change | None:
    """Plan the removal of leftovers of an unrecorded resource that isn't desired."""
    if not context.attempts:
        return None
    intent = context.attempts[0]
    return Change(
        address=context.address,
        action=Action.DELETE,
        provider=intent.provider,
        reason=ActionReason.INTERRUPTED,
        before=plain(intent.attributes),
        depends_on=intent.depends_on,
        seen=context.seen,
        note="leftovers of an interrupted attempt are removed",
    )


def has_same_effect(intent: Intent, change: Change) -> bool:
    """Whether an attempt was at the same change, so that its key can be reused."""
    if change.action in REMOVES:
        return intent.action in _REMOVING
    if (change.action is Action.REUSE) is not (intent.action == _REUSE):
        return False
    starts_run, started_run = change.action is not Action.UPDATE, intent.action != "update"
    if change.address.kind is Kind.JOB and starts_run is not started_run:
        return False
    return is_attempt_at(intent, change.after or {})
