"""Saved plans as JSON files, checks for stale plans, and approvals."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.desired.values import DesiredState, desired_to_json
from trainctl.encryption.keys import SEALED, EncryptionKeys, require_plain
from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import STATE_ONLY_KINDS, Address, Kind
from trainctl.model.json_codec import from_json, to_json
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.changes import (
    change_digest,
    combined_digest,
    differing_paths,
    edit_digest,
    plain,
    plan_digest,
)
from trainctl.plan.values import Change, Plan

_MAGIC = "trainctl_plan"
_MAJOR = 1
_MINOR = 0
MAX_INTERRUPTIONS = 20
"""How often in a row a run whose machine was taken back is started again without approval."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A saved plan with the desired state; ``written_by`` is the version of trainctl.

    ``desired.state`` is the location of the plan's state, wherever it came from. ``lineage`` is the lineage of that
    state; if the plan has none, the state didn't exist, and the first entry takes this one.
    """

    plan: Plan
    desired: DesiredState
    lineage: str
    written_by: str


def write_plan(
    plan: Plan, desired: DesiredState, version: str, keys: EncryptionKeys | None = None
) -> str:
    """Return the text of a plan file, which contains no secrets; with ``keys``, encrypted.

    Sources with very many files are saved without them and resolved again by apply.
    """
    resolved = {
        address: source
        for address, source in plan.resolved.items()
        if isinstance(source.files, tuple)
    }
    # All clusters, because the mirror may be on one without changes.
    clusters = {address for address in desired.resources if address.kind is Kind.CLUSTER}
    included = clusters.union(change.address for change in plan.changes)
    body = {
        "plan": to_json(replace(plan, resolved=resolved)),
        "desired": desired_to_json(desired, included),
        "lineage": plan.lineage or str(uuid.uuid4()),
    }
    head = {_MAGIC: {"major": _MAJOR, "minor": _MINOR}, "written_by": version}
    body["checksum"] = digest(body)
    if keys is not None:
        body = {SEALED: keys.seal(body, body["lineage"], "plan")}
    return json.dumps({**head, **body}, ensure_ascii=False) + "\n"


def read_plan(
    text: str, name: str, keys: Callable[[], EncryptionKeys | None] = lambda: None
) -> SavedPlan:
    """Parse a plan file called ``name``; raise TrainctlError if invalid, newer, or without its key.

    ``keys`` is called if the file is encrypted.
    """
    document = _document(text, name)
    if SEALED in document:
        known = keys()
        if known is None:
            require_plain(document, name)
        else:
            document |= known.unseal(document[SEALED], name, "plan")
    try:
        saved = SavedPlan(
            from_json(Plan, document["plan"]),
            from_json(DesiredState, document["desired"]),
            document["lineage"],
            document["written_by"],
        )
        plan = saved.plan
        body = {name: document[name] for name in ("plan", "desired", "lineage")}
        valid = digest(body) == document["checksum"] and (
            plan_digest(plan.changes, plan.lineage, plan.policies) == plan.digest
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise invalid_plan_file(name, "corrupt") from problem
    if not valid:
        raise invalid_plan_file(name, "corrupt")
    return saved


def _document(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        truncated = text.startswith('{"' + _MAGIC)
        raise (
            invalid_plan_file(name, "truncated") if truncated else _not_a_plan_file(name)
        ) from None
    if not isinstance(document, dict):
        raise _not_a_plan_file(name)
    version = document.get(_MAGIC)
    if not isinstance(version, dict) or not isinstance(version.get("major"), int):
        raise _not_a_plan_file(name)
    if version["major"] > _MAJOR:
        raise TrainctlError(
            f"{name} was saved by a newer trainctl ({document.get('written_by')})",
            f"This version reads plan files of format version {_MAJOR}. Apply the plan with the version that saved it.",
            code="newer-format",
        )
    return document


def invalid_plan_file(name: str, how: str) -> TrainctlError:
    """Return the error of a file that is corrupt or truncated."""
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


def staleness(plan: Plan, state: State) -> Iterator[str]:
    """Yield the reasons why a saved plan can't be applied to its state; none if it can.

    Changes that the same plan made are none.
    """
    if plan.lineage and not state.lineage:
        yield "the state that the plan was made for was deleted"
        return
    state = plan.edits.applied_to(state)
    versions = {change.address: change.seen for change in plan.changes}
    before = {change.address: change.before for change in plan.changes}
    changes = [change for change in plan.changes if change.action is not Action.NOOP or change.edit]
    relevant = {address for change in changes for address in (change.address, *change.depends_on)}
    for address in sorted(relevant & versions.keys()):
        if not state.moved(address, versions[address], plan.digest):
            continue
        times = state.versions.get(address, 0) - versions[address]
        often = "once" if times == 1 else f"{times} times"
        recorded = state.resources.get(address)
        how = differing_paths(before[address], recorded.attributes) if recorded else ""
        yield f"{address}: changed {often} since the plan was made{how}"


def remaining(plan: Plan, state: State) -> Plan:
    """Return the plan without the changes that an earlier apply of it has finished."""
    edits = plan.edits.left(state)
    changes = (
        replace(change, action=Action.NOOP)
        if state.plans.get(change.address) == (plan.digest, change.seen)
        else change
        for change in plan.changes
    )
    left = (replace(item, edit=edits.addresses.get(item.address, "")) for item in changes)
    return replace(plan, changes=tuple(left), edits=edits)


def resumed(
    plan: Plan,
    approved: str,
    outcomes: Mapping[Address, tuple[str, Mapping[str, Any] | None]],
    state: State,
    edits: Mapping[Address, str] = MappingProxyType({}),
) -> Plan | None:
    """Return a new plan as the rest of an approved one; None if it isn't exactly that.

    ``outcomes`` are those of the approved plan, see ``plan_outcomes``; ``edits`` its edits of records. With them, the
    changes left must give the digest of the approved plan. A failed change is left if its values are the same.
    """
    digests = {
        change.address: change_digest(_as_approved(change, approved, state))
        for change in plan.changes
        if change.action is not Action.NOOP
    }
    values = {change.address: change.after for change in plan.changes}
    for address, (digest_, failed) in outcomes.items():
        if address in digests and (
            failed is None or _values_digest(values[address]) != _values_digest(failed)
        ):
            return None
        digests[address] = digest_
    edited = [edit_digest(*edit) for edit in {**plan.edits.addresses, **edits}.items()]
    # The approved plan may be older than the state.
    possible = (
        combined_digest([*digests.values(), *edited], at, plan.policies)
        for at in (plan.lineage, "")
    )
    if approved not in possible:
        return None
    changes = (replace(each, approved_as=digests.get(each.address, "")) for each in plan.changes)
    return replace(plan, digest=approved, changes=tuple(changes))


def _as_approved(change: Change, approved: str, state: State) -> Change:
    """Return a change as the approved plan had it: what that plan changed itself is as it was before."""
    reads = {
        str(address): state.plans[address][1]
        for address in change.depends_on
        if address in state.plans and state.plans[address][0] == approved
    }
    covered = change.covers.get("reads", {})
    return replace(change, covers={**change.covers, "reads": {**covered, **reads}})


_NEEDS_APPROVAL = frozenset({Action.CREATE, Action.UPDATE, Action.REPLACE})


def approval_digests(plan: Plan) -> dict[Address, str]:
    """Return the digests of new values; none for requested runs and state-only kinds."""
    return {
        change.address: _values_digest(change.after)
        for change in plan.changes
        if change.action in _NEEDS_APPROVAL
        and not change.approved_in
        and change.address.kind not in STATE_ONLY_KINDS
        and change.reason is not ActionReason.BY_REQUEST
    }


def resumable_changes(plan: Plan, state: State) -> tuple[Change, ...]:
    """Return changes that need no approval: resumed, approved or retried runs, and missing machines of the latter.

    Never those that stop a live run or that differ from the approved values, including code.
    """
    resumable = []
    for change in plan.changes:
        if change.action not in _NEEDS_APPROVAL or change.stops is not None:
            continue
        # The plan that was approved with these values and has no outcome here, if any.
        values, approved = state.approved.get(change.address, ("", ""))
        approved = approved if values == _values_digest(change.after) else ""
        retries = change.resumes is None and not approved
        if not retries or (is_lost_run_retry(change) and _may_retry(change, state)):
            digest_ = change_digest(_as_approved(change, approved, state))
            resumable.append(replace(change, approved_in=approved, approved_as=digest_))
    retried = [change for change in resumable if is_lost_run_retry(change)]
    clusters = {change.job_spec.cluster_address for change in retried}
    by_address = {change.address: change for change in resumable}
    return tuple(
        by_address.get(change.address, change)
        for change in plan.changes
        if change.address in by_address
        or (
            change.address in clusters
            and change.reason is ActionReason.MISSING
            and change.address in state.resources
            and _values_digest(state.resources[change.address].attributes)
            == _values_digest(change.after)
        )
    )


def is_lost_run_retry(change: Change) -> bool:
    """Whether the change repeats a lost run with the same values and code."""
    return change.reason is ActionReason.RUN_LOST and _values_digest(
        change.before
    ) == _values_digest(change.after)


def _may_retry(change: Change, state: State) -> bool:
    """Count consecutive lost runs as attempts of the job's ``retry``, interrupted runs apart.

    A run that is still recorded as live was lost with its machine, which counts as interrupted if platforms take such
    machines back.
    """
    runs = [RunRecord.from_json(run) for run in reversed(change.outputs.get("runs", ()))]
    vanished = sum(run.status.live for run in runs[:1])
    lost = list(takewhile(lambda run: run.status is RunStatus.LOST, runs[vanished:]))
    interruptions = sum(run.interrupted for run in lost)
    cluster = state.resources.get(change.job_spec.cluster_address)
    nodes = cluster.outputs.get("nodes", ()) if cluster and vanished else ()
    gives_notice = any((node.get("details") or {}).get("notice") for node in nodes)
    if lost[0].interrupted if lost and not vanished else gives_notice:
        return interruptions + vanished <= MAX_INTERRUPTIONS
    return max(len(lost) + vanished - interruptions, 1) < change.job_spec.retry.max_attempts


def _values_digest(values: Mapping[str, Any] | None) -> str:
    return digest(plain(values or {}))
