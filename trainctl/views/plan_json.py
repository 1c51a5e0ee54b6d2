"""A plan as JSON, with Terraform's names where the meaning is Terraform's. CONTRACT's form; only ever grows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trainctl import __version__
from trainctl.model.action import Action
from trainctl.plan.planner import applyable, complete
from trainctl.plan.values import Change, DeliveryLine, Drift, ImageLine, LiveRun, Plan, WeightsLine
from trainctl.views.counts import Counts

FORMAT_VERSION = "1.0"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The whole plan. No-ops are listed too; no secret can be in it, as nothing in a plan holds one."""
    counts = Counts.of(plan)
    providers = {change.address: change.provider for change in plan.changes}
    return {
        "format_version": FORMAT_VERSION,
        "trainctl_version": __version__,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "manifest_digest": plan.manifest_digest,
        "plan_digest": plan.digest,
        "applyable": applyable(plan),
        "complete": complete(plan),
        "errored": not plan.usable,
        "summary": {
            "add": counts.add,
            "change": counts.change,
            "destroy": counts.destroy,
            "replace": counts.replace,
            "forget": counts.forget,
        },
        "resource_changes": [_change(change) for change in plan.changes],
        "resource_drift": [_drift(one, providers.get(one.address, "")) for one in plan.drift],
        "weights": [_weights(line) for line in plan.weights],
        "deliveries": [_delivery(line) for line in plan.deliveries],
        "images": [_image(line) for line in plan.images],
        "cost": {
            "hourly": plan.hourly_cost,
            "currency": "USD",
            "billed_while_mirroring": False,
        },
        "diagnostics": [one.to_json() for one in plan.diagnostics],
    }


def _change(change: Change) -> dict[str, Any]:
    unknown = dict(change.after_unknown)
    before = None if change.before is None else {**change.outputs, **change.before}
    after = None
    if change.after is not None:
        merged = {**change.outputs_after, **change.after}
        after = {key: value for key, value in merged.items() if key not in unknown}
    return {
        "address": str(change.address),
        "mode": "managed",
        "type": change.address.kind.value,
        "name": change.address.name,
        "index": change.address.key,
        "provider_name": change.provider,
        "change": {
            "actions": change.action.json_actions,
            "before": before,
            "after": after,
            "after_unknown": unknown,
            "before_sensitive": {},
            "after_sensitive": {},
            "replace_paths": [list(path) for path in change.replace_paths],
        },
        "action_reason": change.reason.value if change.reason else None,
        "note": change.note or None,
        "stops": _stops(change.stops),
    }


def _stops(run: LiveRun | None) -> dict[str, Any] | None:
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
        "address": str(drift.address),
        "mode": "managed",
        "type": drift.address.kind.value,
        "name": drift.address.name,
        "index": drift.address.key,
        "provider_name": provider,
        "change": {
            "actions": action.json_actions,
            "before": drift.before,
            "after": drift.after,
            "after_unknown": {},
            "before_sensitive": {},
            "after_sensitive": {},
            "replace_paths": [],
        },
        "action_reason": None,
        "note": drift.detail or None,
        "stops": None,
    }


def _weights(line: WeightsLine) -> dict[str, Any]:
    return {
        "address": str(line.address),
        "source": line.source,
        "revision": line.revision,
        "pin": line.pin,
        "listing": line.listing,
        "files": line.files,
        "bytes": line.bytes,
        "bytes_mirrored": line.bytes_mirrored,
        "bytes_upstream": line.bytes_upstream,
        "bytes_through_operator": line.bytes_through_operator,
        "bytes_shared": line.bytes_shared,
        "path": line.path,
        "forecast_seconds": line.forecast_seconds,
    }


def _delivery(line: DeliveryLine) -> dict[str, Any]:
    tiers = line.tiers
    return {
        "job": str(line.job),
        "rank": line.rank,
        "node": line.node,
        "weights": str(line.weights),
        "bytes_by_tier": None
        if tiers is None
        else {
            "node": tiers.node,
            "cluster": tiers.cluster,
            "mirror": tiers.mirror,
            "upstream": tiers.upstream,
        },
        "path": line.path,
        "path_reason": line.why or None,
        "mount": line.mount or None,
        "mount_location": line.mount_location or None,
        "forecast_seconds": line.forecast_seconds,
    }


def _image(line: ImageLine) -> dict[str, Any]:
    return {
        "job": str(line.job),
        "rank": line.rank,
        "node": line.node,
        "image": line.image,
        "engine": line.engine,
        "present": line.present,
    }
