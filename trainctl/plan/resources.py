"""Changes of projects, clusters, weights and caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Kind
from trainctl.plan.resource_context import ResourceContext
from trainctl.plan.runs import UNDOES_ATTEMPT, is_attempt_at
from trainctl.plan.values import Change

PLANNED_WEIGHTS_ATTRIBUTES = frozenset({"revision", "pin", "files", "bytes"})

_OUTPUTS = {
    Kind.CLUSTER: ("nodes",),
    Kind.WEIGHTS: ("listing", "mirror", "mirror_endpoint"),
    Kind.CACHE: ("directory",),
}
"""Outputs known only after apply."""

_FIXED = {Kind.CLUSTER: ("provider",), Kind.CACHE: ("project", "cluster", "dir")}
"""Attributes that force a replacement."""


@dataclass(frozen=True, slots=True)
class DesiredValues:
    """Desired attributes, those unknown until apply, and already known outputs."""

    after: dict[str, Any]
    unknown: dict[str, Any] = field(default_factory=dict)
    known_outputs: dict[str, Any] = field(default_factory=dict)


def plan_resource(context: ResourceContext, desired_values: DesiredValues) -> Change:
    """Plan a desired resource other than a job."""
    if context.recorded is None:
        return _make(context, desired_values, Action.CREATE)
    if context.is_missing:
        return _make(context, desired_values, Action.CREATE, ActionReason.MISSING)
    if context.replace:
        return _make(context, desired_values, Action.REPLACE, ActionReason.BY_REQUEST)
    before, after = context.before, desired_values.after
    fixed = _fixed_attributes(context)
    if paths := tuple((name,) for name in fixed if before.get(name) != after.get(name)):
        return _make(
            context, desired_values, Action.REPLACE, ActionReason.CANNOT_UPDATE, replace_paths=paths
        )
    if before != after and _without_nulls(before) != _without_nulls(after):
        return _update(context, desired_values)
    return _plan_recreation(context, desired_values) or plan_noop(context, after)


def _fixed_attributes(context: ResourceContext) -> tuple[str, ...]:
    """Return the attributes that force a replacement, those of the provider included."""
    fixed = _FIXED.get(context.address.kind, ())
    is_cluster = context.address.kind is Kind.CLUSTER
    return (*fixed, *context.capabilities.replacement_settings) if is_cluster else fixed


def _plan_recreation(context: ResourceContext, desired_values: DesiredValues) -> Change | None:
    """Plan an update for a moved mirror, recovered nodes or an interrupted attempt."""
    if context.other_mirror:
        note = f"the mirror was {context.other_mirror}"
        return _make(context, desired_values, Action.UPDATE, ActionReason.MIRROR_MOVED, note=note)
    if context.observed is not None and context.observed.recovered_nodes:
        note = f"{', '.join(context.observed.recovered_nodes)} is reachable again"
        return _make(context, desired_values, Action.UPDATE, note=note)
    if context.intent is not None:
        note = "" if is_attempt_at(context.intent, desired_values.after) else UNDOES_ATTEMPT
        return _make(context, desired_values, Action.UPDATE, ActionReason.INTERRUPTED, note=note)
    return None


def plan_noop(context: ResourceContext, after: dict[str, Any], **more: Any) -> Change:
    """Plan a no-op, or an update if lifecycle settings or dependencies changed."""
    note = _record_note(context)
    action = Action.UPDATE if note else Action.NOOP
    more["note"] = ", ".join(part for part in (more.get("note"), note) if part)
    return context.make(action, after, outputs_after=context.outputs, **more)


def _without_nulls(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}


def _record_note(context: ResourceContext) -> str:
    if context.recorded is None or context.resource is None:
        return ""
    if context.recorded.lifecycle != context.lifecycle:
        return "only lifecycle settings are updated in the state"
    if set(context.recorded.depends_on) != set(context.resource.depends_on):
        return "only dependencies are updated in the state"
    return ""


def _update(context: ResourceContext, desired_values: DesiredValues) -> Change:
    differing = {
        key
        for key in context.before.keys() | desired_values.after.keys()
        if context.before.get(key) != desired_values.after.get(key)
    }
    moved = context.address.kind is Kind.WEIGHTS and differing <= PLANNED_WEIGHTS_ATTRIBUTES
    return _make(
        context, desired_values, Action.UPDATE, ActionReason.SOURCE_MOVED if moved else None
    )


def _make(
    context: ResourceContext,
    desired_values: DesiredValues,
    action: Action,
    reason: ActionReason | None = None,
    **more: Any,
) -> Change:
    unknown = {
        **desired_values.unknown,
        **{
            name: True
            for name in _changed_outputs(context, desired_values, action)
            if name not in desired_values.known_outputs
        },
    }
    recorded = {} if action is Action.CREATE else context.outputs
    outputs = {**recorded, **desired_values.known_outputs}
    return context.make(
        action,
        desired_values.after,
        reason,
        after_unknown=unknown,
        outputs_after={key: value for key, value in outputs.items() if key not in unknown},
        **more,
    )


def _changed_outputs(
    context: ResourceContext, desired_values: DesiredValues, action: Action
) -> tuple[str, ...]:
    """Return the outputs that the change may modify."""
    names = _OUTPUTS.get(context.address.kind, ())
    if (
        context.address.kind is Kind.WEIGHTS
        and action is Action.UPDATE
        and not context.other_mirror
    ):
        same = context.before.get("pin") == desired_values.after.get("pin")
        return () if same and desired_values.after.get("pin") else ("listing",)
    return names
