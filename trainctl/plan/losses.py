"""Checkpoints that a plan deletes although no other copy is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.plan.values import Plan


class LostCheckpoints(NamedTuple):
    """Checkpoints of one run; without names: all of them."""

    job: Address
    run: int
    names: tuple[str, ...] = ()


def lost_checkpoints(plan: Plan) -> Iterator[LostCheckpoints]:
    """Yield checkpoints that are deleted on request, or aren't uploaded when their job or cluster is destroyed."""
    clusters = {
        change.address
        for change in plan.changes
        if change.address.kind is Kind.CLUSTER and change.action in (Action.DELETE, Action.REPLACE)
    }
    for change in plan.changes:
        is_deleted = change.action is Action.DELETE
        if change.address.kind is not Kind.JOB or not (
            is_deleted or change.job_spec.cluster_address in clusters
        ):
            continue
        for run in map(RunRecord.from_json, change.outputs.get("runs") or ()):
            if run.reused_from is not None:
                continue
            if is_deleted and plan.options.delete_checkpoints:
                yield LostCheckpoints(change.address, run.number)
            elif run.sync.get("pending"):
                yield LostCheckpoints(change.address, run.number, tuple(run.sync["pending"]))
