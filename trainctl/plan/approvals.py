"""What of a plan only carries on what was approved before: all that may be done with nobody asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.base.json import digest
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import STATE_ONLY_KINDS, Address
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.diff import plain
from trainctl.plan.values import Change, Plan

_MAKING = frozenset({Action.CREATE, Action.UPDATE, Action.REPLACE})


def approval_digests(plan: Plan) -> dict[Address, str]:
    """Of each change that makes something, the digest of what it makes so. What is only a record never waits, and a run that was asked for waits for nobody."""
    return {
        change.address: _wanted(change.after)
        for change in plan.changes
        if change.action in _MAKING
        and change.address.kind not in STATE_ONLY_KINDS
        and change.reason is not ActionReason.BY_REQUEST
    }


def resumable_changes(plan: Plan, state: State) -> tuple[Change, ...]:
    """The plan's changes that carry on an attempt, were approved and never begun, or give a lost run its next.

    None stops a live run; what differs from what was approved, in its code too, is left to an apply.
    """
    return tuple(
        change
        for change in plan.changes
        if change.action in _MAKING and change.stops is None and _resumes(change, state)
    )


def is_lost_run_retry(change: Change) -> bool:
    """Whether the change gives a run that was lost, with its supervisor or its node, its next, as its job was and with today's same code."""
    return change.reason is ActionReason.RUN_LOST and _wanted(change.before) == _wanted(
        change.after
    )


def _resumes(change: Change, state: State) -> bool:
    if change.resumes is not None:
        return True
    if state.approved.get(change.address) == _wanted(change.after):
        return True
    return is_lost_run_retry(change) and _may_retry(change)


def _may_retry(change: Change) -> bool:
    """Lost runs count as attempts of the job's ``retry``, those that follow one another without any other end."""
    runs = [RunRecord.from_json(one) for one in change.outputs.get("runs", ())]
    ends = [run.status is RunStatus.LOST for run in reversed(runs)]
    in_a_row = ends.index(False) if False in ends else len(ends)
    return max(in_a_row, 1) < change.job_spec.retry.max_attempts


def _wanted(values: Mapping[str, Any] | None) -> str:
    return digest(plain(values or {}))
