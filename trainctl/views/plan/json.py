"""Format a plan as JSON, with the names of Terraform's plan format."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from trainctl import __version__
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.json_codec import to_json
from trainctl.model.run import ReusedRun
from trainctl.plan.planner import is_applyable, is_complete
from trainctl.plan.values import AffectedRun, Change, DeliveryRow, Drift, Plan
from trainctl.views.plan.tables import lost_items
from trainctl.views.terminal.text import format_timestamp

FORMAT_VERSION = "1.0"
_TIERS = ("node", "cluster", "mirror", "upstream")


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the JSON of a plan, including no-ops."""
    providers = {change.address: change.provider for change in plan.changes}
    return {
        "format_version": FORMAT_VERSION,
        "trainctl_version": __version__,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "manifest_digest": plan.manifest_digest,
        "plan_digest": plan.digest,
        "applyable": is_applyable(plan),
        "complete": is_complete(plan),
        "errored": not plan.usable,
        "summary": asdict(PlanCounts.of(plan)),
        "resource_changes": [_change(change) for change in plan.changes],
        "resource_drift": [_drift(drift, providers.get(drift.address, "")) for drift in plan.drift],
        "weights": [{**to_json(line), "path": line.path} for line in plan.weights],
        "deliveries": [_delivery(line) for line in plan.deliveries],
        "images": [to_json(line) for line in plan.images],
        "offers": [
            {"cluster": str(address), **offer.to_json()}
            for address, offers in plan.offers.items()
            for offer in offers
        ],
        "contents": [to_json(diff) for diff in plan.contents],
        "batch_systems": [
            {
                "cluster": row.cluster.name,
                "partitions": [asdict(partition) for partition in row.partitions],
                "jobs": [
                    {"job": str(job), "start_at": format_timestamp(forecast.start)}
                    for job, forecast in row.jobs
                ],
            }
            for row in plan.batch_systems
        ],
        "cost": {
            "hourly": plan.hourly_cost,
            "currency": "USD",
            "billed_while_mirroring": False,
            "expected_seconds": {
                str(job): run.seconds[-1] for job, run in plan.runs.items() if run.seconds
            },
        },
        "runs": [{"job": str(job), **asdict(run)} for job, run in plan.runs.items()],
        "lost_checkpoints": [
            {"job": str(job), "checkpoints": f"{names} of {run}" if names else run}
            for job, run, names in lost_items(plan)
        ],
        "policies": [to_json(result) for result in plan.policy_results],
        "diagnostics": [diagnostic.to_json() for diagnostic in plan.diagnostics],
    }


def _change(change: Change) -> dict[str, Any]:
    unknown = dict(change.after_unknown)
    # a job with earlier runs that reuses one is updated
    is_update = change.action is Action.REUSE and change.before is not None
    is_import = bool(change.edit) and change.previous is None
    before = None if change.before is None else {**change.outputs, **change.before}
    after = None
    if change.after is not None:
        merged = {**change.outputs_after, **change.after}
        after = {key: value for key, value in merged.items() if key not in unknown}
    return {
        **_resource(change.address, change.provider),
        "change": {
            **_values(change.action, before, after),
            "actions": (Action.UPDATE if is_update else change.action).json_actions,
            "after_unknown": unknown,
            "replace_paths": [list(path) for path in change.replace_paths],
            **({"importing": {"id": change.outputs["runs"][-1]["id"]}} if is_import else {}),
        },
        **({"previous_address": str(change.previous)} if change.previous else {}),
        "action_reason": change.reason.value if change.reason else None,
        "note": change.note or None,
        "stops": _stopped_run_json(change.stops),
        "reuses": _reused_run_json(change.reuses),
    }


def _reused_run_json(reused: ReusedRun | None) -> dict[str, Any] | None:
    if reused is None:
        return None
    run = reused.run
    return {
        "run": run.id,
        "number": run.number,
        **(run.reused_from or {"job": None, "state": None}),
    }


def _stopped_run_json(run: AffectedRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    started = run.started_at
    when = None if started is None else datetime.fromtimestamp(started, UTC).isoformat()
    return {
        "run": run.id,
        "number": run.number,
        "started_at": when and when.replace("+00:00", "Z"),
        "ranks": run.ranks,
        "gpus": run.gpus,
    }


def _drift(drift: Drift, provider: str) -> dict[str, Any]:
    action = Action.DELETE if drift.after is None else Action.UPDATE
    return {
        **_resource(drift.address, provider),
        "change": _values(action, drift.before, drift.after),
        "action_reason": None,
        "note": drift.detail or None,
        "stops": None,
        "reuses": None,
    }


def _values(action: Action, before: Any, after: Any) -> dict[str, Any]:
    return {
        "actions": action.json_actions,
        "before": before,
        "after": after,
        "after_unknown": {},
        "before_sensitive": {},
        "after_sensitive": {},
        "replace_paths": [],
    }


def _resource(address: Address, provider: str) -> dict[str, Any]:
    return {
        "address": str(address),
        "mode": "managed",
        "type": address.kind.value,
        "name": address.name,
        "index": address.key,
        "provider_name": provider,
    }


def _delivery(line: DeliveryRow) -> dict[str, Any]:
    tiers = line.tiers
    return {
        "job": str(line.job),
        "rank": line.rank,
        "node": line.node,
        "weights": str(line.weights),
        "bytes_by_tier": tiers and {name: getattr(tiers, name) for name in _TIERS},
        "path": line.path,
        "path_reason": line.why or None,
        "mount": line.mount or None,
        "mount_location": line.mount_location or None,
        "forecast_seconds": line.forecast_seconds,
    }


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Numbers of changes; a replacement counts as add and destroy."""

    add: int
    change: int
    destroy: int
    replace: int
    forget: int
    move: int
    imports: int
    reuse: int

    @classmethod
    def of(cls, plan: Plan) -> PlanCounts:
        """Count the changes of a plan."""
        counts = Counter(change.action for change in plan.changes)
        replaced = counts[Action.REPLACE]
        return cls(
            add=counts[Action.CREATE] + replaced,
            change=counts[Action.UPDATE],
            destroy=counts[Action.DELETE] + replaced,
            replace=replaced,
            forget=counts[Action.FORGET],
            move=len(plan.edits.renames),
            imports=len(plan.edits.imports),
            reuse=counts[Action.REUSE],
        )

    def __str__(self) -> str:
        text = f"Plan: {self.add} to add, {self.change} to change, {self.destroy} to destroy"
        text += f", {self.move} to move" if self.move else ""
        text += f", {self.imports} to import" if self.imports else ""
        text += f", {self.reuse} to reuse" if self.reuse else ""
        return f"{text}, {self.forget} to remove from the state." if self.forget else f"{text}."
