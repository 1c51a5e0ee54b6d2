"""Format a plan as JSON, with the names of Terraform's plan format."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from trainctl import __version__
from trainctl.base.lazy_dataclass import asdict
from trainctl.model.action import Action
from trainctl.model.json_codec import to_json
from trainctl.plan.planner import is_applyable, is_complete
from trainctl.plan.values import Change, DeliveryRow, Plan
from trainctl.views.plan.tables import lost_items
from trainctl.views.terminal.text import format_timestamp

FORMAT_VERSION = "1.0"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the JSON of a plan, including no-ops."""
    providers = {change.address: change.provider for change in plan.changes}
    return {
        "format_version": FORMAT_VERSION,
        "trainctl_version": __version__,
        **{name: getattr(plan, name) for name in ("lineage", "serial", "manifest_digest")},
        "plan_digest": plan.digest,
        "applyable": is_applyable(plan),
        "complete": is_complete(plan),
        "errored": not plan.usable,
        "summary": plan_counts(plan),
        "resource_changes": [_change(change) for change in plan.changes],
        "resource_drift": [
            _change(
                Change(
                    drift.address,
                    Action.DELETE if drift.after is None else Action.UPDATE,
                    providers.get(drift.address, ""),
                    before=drift.before,
                    after=drift.after,
                    note=drift.detail,
                )
            )
            for drift in plan.drift
        ],
        "weights": [{**to_json(line), "path": line.path} for line in plan.weights],
        "deliveries": [_delivery(line) for line in plan.deliveries],
        "images": [to_json(line) for line in plan.images],
        "offers": [
            {"cluster": str(address), **to_json(offer)}
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
            "unattended": [to_json(row) for row in plan.unattended],
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
    address, unknown = change.address, dict(change.after_unknown)
    # a job with earlier runs that reuses one is updated
    is_update = change.action is Action.REUSE and change.before is not None
    is_import = bool(change.edit) and change.previous is None
    before = None if change.before is None else {**change.outputs, **change.before}
    after = None
    if change.after is not None:
        merged = {**change.outputs_after, **change.after}
        after = {key: value for key, value in merged.items() if key not in unknown}
    stopped, reused = change.stops, change.reuses and change.reuses.run
    started = stopped.started_at if stopped else None
    when = None if started is None else datetime.fromtimestamp(started, UTC).isoformat()
    machines = [
        {"node": m.node.name, "planner": m.planner, "digest": m.digest, "changes": [*m.changes]}
        for m in change.machines
    ]
    return {
        "address": str(address),
        "mode": "managed",
        "type": address.kind.value,
        "name": address.name,
        "index": address.key,
        "provider_name": change.provider,
        "change": {
            "actions": (Action.UPDATE if is_update else change.action).json_actions,
            "before": before,
            "after": after,
            "after_unknown": unknown,
            "before_sensitive": {},
            "after_sensitive": {},
            "replace_paths": [list(path) for path in change.replace_paths],
            **({"importing": {"id": change.outputs["runs"][-1]["id"]}} if is_import else {}),
        },
        **({"previous_address": str(change.previous)} if change.previous else {}),
        "action_reason": change.reason.value if change.reason else None,
        "note": change.note or None,
        **({"machines": machines} if machines else {}),
        "stops": stopped
        and {
            "run": stopped.id,
            "number": stopped.number,
            "started_at": when and when.replace("+00:00", "Z"),
            "ranks": stopped.ranks,
            "gpus": stopped.gpus,
        },
        "reuses": reused
        and {
            "run": reused.id,
            "number": reused.number,
            **(reused.reused_from or {"job": None, "state": None}),
        },
    }


def _delivery(line: DeliveryRow) -> dict[str, Any]:
    form = to_json(line)
    return {
        **{name: form[name] for name in ("job", "rank", "node", "weights")},
        "bytes_by_tier": form["tiers"],
        "path": line.path,
        "path_reason": line.why or None,
        **{name: form[name] or None for name in ("mount", "mount_location")},
        "forecast_seconds": line.forecast_seconds,
    }


def plan_counts(plan: Plan) -> dict[str, int]:
    """Return the numbers of changes; a replacement counts as add and destroy."""
    counts = Counter(change.action for change in plan.changes)
    replaced = counts[Action.REPLACE]
    return {
        "add": counts[Action.CREATE] + replaced,
        "change": counts[Action.UPDATE],
        "destroy": counts[Action.DELETE] + replaced,
        "replace": replaced,
        "forget": counts[Action.FORGET],
        "move": len(plan.edits.renames),
        "imports": len(plan.edits.imports),
        "reuse": counts[Action.REUSE],
    }


_RARE = {"move": "move", "imports": "import", "reuse": "reuse", "forget": "remove from the state"}
"""Counts that are named if they aren't 0, with their verbs."""


def counts_text(plan: Plan) -> str:
    """Format ``Plan: 2 to add, 0 to change, 1 to destroy.``"""
    counts = plan_counts(plan)
    verbs = {**dict.fromkeys(("add", "change", "destroy")), **_RARE}
    parts = [
        f"{counts[name]} to {verb or name}"
        for name, verb in verbs.items()
        if counts[name] or not verb
    ]
    return f"Plan: {', '.join(parts)}."
