"""Projects, clusters, weights and caches: made, changed in place, replaced, and found gone."""

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
"""What is known only after a resource was made."""

_FIXED = {Kind.CLUSTER: ("provider",), Kind.CACHE: ("project", "cluster", "dir")}
"""What can't be changed in place: another value is another thing."""


@dataclass(frozen=True, slots=True)
class DesiredValues:
    """What a resource is to be: ``after``, what of it isn't known yet, and outputs that are known already."""

    after: dict[str, Any]
    unknown: dict[str, Any] = field(default_factory=dict)
    known_outputs: dict[str, Any] = field(default_factory=dict)


def plan_resource(subject: ResourceContext, desired_values: DesiredValues) -> Change:
    """What happens to a wanted resource of a kind other than job."""
    if subject.recorded is None:
        return _make(subject, desired_values, Action.CREATE)
    if subject.gone:
        return _make(subject, desired_values, Action.CREATE, ActionReason.MISSING)
    if subject.replace:
        return _make(subject, desired_values, Action.REPLACE, ActionReason.BY_REQUEST)
    before, after = subject.before, desired_values.after
    fixed = _FIXED.get(subject.address.kind, ())
    if paths := tuple((name,) for name in fixed if before.get(name) != after.get(name)):
        return _make(
            subject, desired_values, Action.REPLACE, ActionReason.CANNOT_UPDATE, replace_paths=paths
        )
    if before != after and _without_nulls(before) != _without_nulls(after):
        return _update(subject, desired_values)
    return _plan_recreation(subject, desired_values) or plan_noop(subject, after)


def _plan_recreation(subject: ResourceContext, desired_values: DesiredValues) -> Change | None:
    """What is to be made once more, though nothing of it is to be different."""
    if subject.other_mirror:
        note = f"the mirror was {subject.other_mirror}"
        return _make(subject, desired_values, Action.UPDATE, ActionReason.MIRROR_MOVED, note=note)
    if subject.observed is not None and subject.observed.recovered_nodes:
        note = f"{', '.join(subject.observed.recovered_nodes)} is reachable again"
        return _make(subject, desired_values, Action.UPDATE, note=note)
    if subject.intent is not None:
        note = "" if is_attempt_at(subject.intent, desired_values.after) else UNDOES_ATTEMPT
        return _make(subject, desired_values, Action.UPDATE, ActionReason.INTERRUPTED, note=note)
    return None


def plan_noop(subject: ResourceContext, after: dict[str, Any], **more: Any) -> Change:
    """A no-op, unless what is recorded beside the attributes has to be recorded anew."""
    note = _needs_recording(subject)
    action = Action.UPDATE if note else Action.NOOP
    more["note"] = ", ".join(part for part in (more.get("note"), note) if part)
    return subject.make(action, after, outputs_after=subject.outputs, **more)


def _without_nulls(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that say something: absent means null."""
    return {key: value for key, value in attributes.items() if value is not None}


def _needs_recording(subject: ResourceContext) -> str:
    if subject.recorded is None or subject.resource is None:
        return ""
    if subject.recorded.lifecycle != subject.lifecycle:
        return "only lifecycle settings are updated in the state"
    if set(subject.recorded.depends_on) != set(subject.resource.depends_on):
        return "only dependencies are updated in the state"
    return ""


def _update(subject: ResourceContext, desired_values: DesiredValues) -> Change:
    differing = {
        key
        for key in subject.before.keys() | desired_values.after.keys()
        if subject.before.get(key) != desired_values.after.get(key)
    }
    moved = subject.address.kind is Kind.WEIGHTS and differing <= PLANNED_WEIGHTS_ATTRIBUTES
    return _make(
        subject, desired_values, Action.UPDATE, ActionReason.SOURCE_MOVED if moved else None
    )


def _make(
    subject: ResourceContext,
    desired_values: DesiredValues,
    action: Action,
    reason: ActionReason | None = None,
    **more: Any,
) -> Change:
    unknown = {
        **desired_values.unknown,
        **{
            name: True
            for name in _changed_outputs(subject, desired_values, action)
            if name not in desired_values.known_outputs
        },
    }
    kept = {} if action is Action.CREATE else subject.outputs
    outputs = {**kept, **desired_values.known_outputs}
    return subject.make(
        action,
        desired_values.after,
        reason,
        after_unknown=unknown,
        outputs_after={key: value for key, value in outputs.items() if key not in unknown},
        **more,
    )


def _changed_outputs(
    subject: ResourceContext, desired_values: DesiredValues, action: Action
) -> tuple[str, ...]:
    """Outputs that the change may make different."""
    names = _OUTPUTS.get(subject.address.kind, ())
    if (
        subject.address.kind is Kind.WEIGHTS
        and action is Action.UPDATE
        and not subject.other_mirror
    ):
        same = subject.before.get("pin") == desired_values.after.get("pin")
        return () if same and desired_values.after.get("pin") else ("listing",)
    return names
