"""What happens to a resource and why, in words."""

from __future__ import annotations

from trainctl.base.units import format_duration
from trainctl.model.action import Action, Reason
from trainctl.model.address import Kind
from trainctl.plan.values import Change, LiveRun
from trainctl.views.text import counted

LEGEND = {
    Action.CREATE: ("+", "create"),
    Action.UPDATE: ("~", "update in place"),
    Action.REPLACE: ("-/+", "replace"),
    Action.DELETE: ("-", "destroy"),
    Action.FORGET: (".", "forget, destroying nothing"),
}
COLOURS = {"+": "green", "~": "yellow", "-/+": "red", "-": "red", ".": "cyan"}

_REASONS = {
    Reason.GONE: "will be created again: it is gone",
    Reason.SOURCE_MOVED: "will be updated in place: its source has moved",
    Reason.MIRROR_MOVED: "will be updated in place: the mirror has moved",
    Reason.NO_CONFIG: "will be destroyed: it is not in the manifest",
    Reason.ENDED: "will be forgotten: it is not in the manifest, and its last run has ended",
}
_JOBS = {
    Reason.CANNOT_UPDATE: "must run again: its configuration has changed",
    Reason.BY_REQUEST: "will run again, as requested",
    Reason.BY_TRIGGERS: "will run again, as its rerun_on asks",
    Reason.RUN_FAILED: "will run again: its last run failed, and it has changed since",
    Reason.DEPLOY_FAILED: "will run again: its last run could not be deployed",
    Reason.RUN_LOST: "will run again: the supervisor or the machine of its last run was lost",
    Reason.INTERRUPTED: "will run again: starting it was interrupted",
}
_ACTIONS = {
    Action.CREATE: "will be created",
    Action.UPDATE: "will be updated in place",
    Action.REPLACE: "must be replaced",
    Action.DELETE: "will be destroyed",
    Action.FORGET: "will be forgotten",
}


def headline(change: Change) -> str:
    """The comment above a change: what happens, and why where there is a why."""
    reason = change.reason
    if change.address.kind is Kind.JOB and change.action is Action.REPLACE and reason in _JOBS:
        return _JOBS[reason]
    if reason is Reason.BY_REQUEST:
        return "will be replaced, as requested"
    return _REASONS[reason] if reason in _REASONS else _ACTIONS[change.action]


def live_words(run: LiveRun, now: float | None) -> str:
    """A live run: ``live run 7 (2d 4h, 16 GPUs)``; without a clock, how long is left out."""
    facts = []
    if now is not None and run.started_at is not None:
        facts.append(format_duration(max(now - run.started_at, 0.0)))
    if run.gpus:
        facts.append(counted(run.gpus, "GPU"))
    elif run.ranks > 1:
        facts.append(counted(run.ranks, "node"))
    return f"live run {run.number}" + (f" ({', '.join(facts)})" if facts else "")
