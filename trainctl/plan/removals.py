"""What is recorded and not wanted any more."""

from __future__ import annotations

from trainctl.model.action import Action, Reason
from trainctl.model.address import Kind
from trainctl.plan.runs import begun_run, live_run
from trainctl.plan.subject import Subject
from trainctl.plan.values import Change


def plan_removal(subject: Subject) -> Change:
    """Delete; a job whose block is gone and whose run has ended is forgotten, as nothing of it can be undone."""
    stops = live_run(subject) or begun_run(subject)
    reason = None if subject.destroying else Reason.NO_CONFIG
    if subject.address.kind is Kind.JOB and stops is None and not subject.destroying:
        return subject.remove(Action.FORGET, Reason.ENDED)
    return subject.remove(Action.DELETE, reason, stops=stops)
