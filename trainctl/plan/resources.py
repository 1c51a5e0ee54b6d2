"""Projects, clusters, weights and caches: made, changed in place, replaced, and found gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainctl.model.action import Action, Reason
from trainctl.model.address import Kind
from trainctl.plan.runs import UNDONE, attempted
from trainctl.plan.subject import Subject
from trainctl.plan.values import Change

PLANNED_OF_WEIGHTS = frozenset({"revision", "pin", "files", "bytes"})

_OUTPUTS = {
    Kind.CLUSTER: ("nodes",),
    Kind.WEIGHTS: ("listing", "mirror", "mirror_endpoint"),
    Kind.CACHE: ("directory",),
}
"""What is known only after a resource was made."""

_FIXED = {Kind.CLUSTER: ("provider",), Kind.CACHE: ("project", "cluster", "dir")}
"""What can't be changed in place: another value is another thing."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a resource is to be: ``after``, what of it isn't known yet, and outputs that are known already."""

    after: dict[str, Any]
    unknown: dict[str, Any] = field(default_factory=dict)
    known_outputs: dict[str, Any] = field(default_factory=dict)


def plan_resource(subject: Subject, wish: Wish) -> Change:
    """What happens to a wanted resource of a kind other than job."""
    if subject.recorded is None:
        return _make(subject, wish, Action.CREATE)
    if subject.gone:
        return _make(subject, wish, Action.CREATE, Reason.GONE)
    if subject.replace:
        return _make(subject, wish, Action.REPLACE, Reason.BY_REQUEST)
    before, after = subject.before, wish.after
    fixed = _FIXED.get(subject.address.kind, ())
    if paths := tuple((name,) for name in fixed if before.get(name) != after.get(name)):
        return _make(subject, wish, Action.REPLACE, Reason.CANNOT_UPDATE, replace_paths=paths)
    if before != after and _present(before) != _present(after):
        return _update(subject, wish)
    return _made_again(subject, wish) or unchanged(subject, after)


def _made_again(subject: Subject, wish: Wish) -> Change | None:
    """What is to be made once more, though nothing of it is to be different."""
    if subject.elsewhere:
        note = f"the mirror was {subject.elsewhere}"
        return _make(subject, wish, Action.UPDATE, Reason.MIRROR_MOVED, note=note)
    if subject.observed is not None and subject.observed.back:
        note = f"{', '.join(subject.observed.back)} can be reached now"
        return _make(subject, wish, Action.UPDATE, note=note)
    if subject.intent is not None:
        note = "" if attempted(subject.intent, wish.after) else UNDONE
        return _make(subject, wish, Action.UPDATE, Reason.INTERRUPTED, note=note)
    return None


def unchanged(subject: Subject, after: dict[str, Any], **more: Any) -> Change:
    """A no-op, unless what is recorded beside the attributes has to be recorded anew."""
    note = _recorded_anew(subject)
    action = Action.UPDATE if note else Action.NOOP
    more["note"] = ", ".join(part for part in (more.get("note"), note) if part)
    return subject.make(action, after, outputs_after=subject.outputs, **more)


def _present(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that say something: absent means null."""
    return {key: value for key, value in attributes.items() if value is not None}


def _recorded_anew(subject: Subject) -> str:
    if subject.recorded is None or subject.resource is None:
        return ""
    if subject.recorded.lifecycle != subject.lifecycle:
        return "only its lifecycle is recorded anew"
    if set(subject.recorded.depends_on) != set(subject.resource.depends_on):
        return "only its dependencies are recorded anew"
    return ""


def _update(subject: Subject, wish: Wish) -> Change:
    differing = {
        key
        for key in subject.before.keys() | wish.after.keys()
        if subject.before.get(key) != wish.after.get(key)
    }
    moved = subject.address.kind is Kind.WEIGHTS and differing <= PLANNED_OF_WEIGHTS
    return _make(subject, wish, Action.UPDATE, Reason.SOURCE_MOVED if moved else None)


def _make(
    subject: Subject, wish: Wish, action: Action, reason: Reason | None = None, **more: Any
) -> Change:
    unknown = {
        **wish.unknown,
        **{name: True for name in _remade(subject, wish, action) if name not in wish.known_outputs},
    }
    kept = {} if action is Action.CREATE else subject.outputs
    outputs = {**kept, **wish.known_outputs}
    return subject.make(
        action,
        wish.after,
        reason,
        after_unknown=unknown,
        outputs_after={key: value for key, value in outputs.items() if key not in unknown},
        **more,
    )


def _remade(subject: Subject, wish: Wish, action: Action) -> tuple[str, ...]:
    """Outputs that the change may make different."""
    names = _OUTPUTS.get(subject.address.kind, ())
    if subject.address.kind is Kind.WEIGHTS and action is Action.UPDATE and not subject.elsewhere:
        same = subject.before.get("pin") == wish.after.get("pin")
        return () if same and wish.after.get("pin") else ("listing",)
    return names
