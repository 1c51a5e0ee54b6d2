"""A saved plan: everything that applying it needs of the plan and of its manifest, as JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainctl.base.json import digest
from trainctl.desired.values import DesiredState, desired_to_json
from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import from_json, to_json
from trainctl.plan.diff import plan_digest
from trainctl.plan.values import Change, Plan

_MAGIC = "trainctl_plan"
_MAJOR = 1
_MINOR = 0


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan as it was reviewed, and what of its manifest it needs; ``written_by`` is the version that saved it."""

    plan: Plan
    desired: DesiredState
    written_by: str


def write_plan(plan: Plan, desired: DesiredState, version: str) -> str:
    """The text of a plan file. It names hosts, paths and commands but holds no secret; keep it 0600 all the same.

    A source of very many files is not in it with each of them: its revision and pin are, and apply resolves it again.
    """
    short = {key: one for key, one in plan.resolved.items() if isinstance(one.files, tuple)}
    clusters = {resource for resource in desired.resources if resource.kind is Kind.CLUSTER}
    kept = clusters.union(
        change.address for change in plan.changes
    )  # one of them may keep the mirror
    body = {
        "plan": to_json(replace(plan, resolved=short)),
        "desired": desired_to_json(desired, kept),
    }
    head = {_MAGIC: {"major": _MAJOR, "minor": _MINOR}, "written_by": version}
    return json.dumps({**head, "checksum": digest(body), **body}, ensure_ascii=False) + "\n"


def read_plan(text: str, name: str) -> SavedPlan:
    """Read a plan file called ``name``. TrainctlError if it is no plan file, a newer one, or damaged."""
    document = _document(text, name)
    try:
        saved = SavedPlan(
            from_json(Plan, document["plan"]),
            from_json(DesiredState, document["desired"]),
            document["written_by"],
        )
        body = {"plan": document["plan"], "desired": document["desired"]}
        sound = digest(body) == document["checksum"] and (
            plan_digest(saved.plan.changes) == saved.plan.digest
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _damaged(name, "corrupt") from problem
    if not sound:
        raise _damaged(name, "corrupt")
    return saved


def _document(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        cut = text.startswith('{"' + _MAGIC)
        raise (_damaged(name, "truncated") if cut else _not_a_plan_file(name)) from None
    if not isinstance(document, dict):
        raise _not_a_plan_file(name)
    form = document.get(_MAGIC)
    if not isinstance(form, dict) or not isinstance(form.get("major"), int):
        raise _not_a_plan_file(name)
    if form["major"] > _MAJOR:
        raise TrainctlError(
            f"{name} was saved by a newer trainctl ({document.get('written_by')})",
            f"This version reads plan files of format version {_MAJOR}. Apply the plan with the version that saved it.",
            code="newer-format",
        )
    return document


def _damaged(name: str, how: str) -> TrainctlError:
    return TrainctlError(
        f"{name} is {how}",
        "Save a new plan: trainctl plan --out FILE.",
        code="invalid-plan-file",
    )


def _not_a_plan_file(name: str) -> TrainctlError:
    return TrainctlError(
        f"{name} is not a plan file",
        "Use a file written by trainctl plan --out, or run apply without a file to plan and apply.",
        code="invalid-plan-file",
    )


@dataclass(frozen=True, slots=True)
class StaleReason:
    """One thing that isn't as the plan saw it; ``address`` is None where it is the whole state."""

    address: Address | None
    what: str

    def __str__(self) -> str:
        return f"{self.address}: {self.what}" if self.address else self.what


def staleness(plan: Plan, state: State) -> tuple[StaleReason, ...]:
    """What a saved plan was made for and is not so any more; empty if it may be applied.

    A plan made before its state was born has no lineage, and fits any state that has none of its addresses.
    """
    if plan.lineage and plan.lineage != state.lineage:
        return (StaleReason(None, "the plan was made for a different state"),)
    moved = tuple(_moved(plan, state))
    if not moved and plan.has_changes and not _undone_by_state(plan, state):
        return (StaleReason(None, "the plan is already applied"),)
    return moved


def remaining(plan: Plan, state: State) -> tuple[Change, ...]:
    """The plan's changes without those that an earlier, interrupted apply of the same plan finished."""
    return tuple(
        change
        for change in plan.changes
        if change.action is Action.NOOP or not _done(plan, state, change.address, change.seen)
    )


def _moved(plan: Plan, state: State) -> Iterator[StaleReason]:
    seen = {change.address: change.seen for change in plan.changes}
    matters = _relevant_addresses(plan)
    for address in sorted(matters & seen.keys()):
        if not state.moved(address, seen[address], plan.digest):
            continue
        times = state.versions.get(address, 0) - seen[address]
        often = "once" if times == 1 else f"{times} times"
        yield StaleReason(address, f"changed {often} since the plan was made")


def _relevant_addresses(plan: Plan) -> set[Address]:
    """What the plan changes, and what those changes read."""
    changed = [change for change in plan.changes if change.action is not Action.NOOP]
    return {one.address for one in changed} | {
        needed for one in changed for needed in one.depends_on
    }


def _done(plan: Plan, state: State, address: Address, seen: int) -> bool:
    return state.plans.get(address) == (plan.digest, seen)


def _undone_by_state(plan: Plan, state: State) -> bool:
    return any(change.action is not Action.NOOP for change in remaining(plan, state))
