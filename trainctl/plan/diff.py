"""Differences of JSON values, and the digest of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainctl.base.json import digest
from trainctl.desired.values import DesiredState
from trainctl.errors import TrainctlError
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import to_json
from trainctl.model.specs.location import CheckpointsLocation, StoreLocation
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import PlanPolicy, PolicyLevel
from trainctl.plan.values import Change, Plan

Path = tuple[str | int, ...]

_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """Convert mappings to dicts and sequences to lists, as JSON does."""
    # Most values are atoms in dicts; checking exact types first is much faster.
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in _ATOMS else plain(item) for key, item in value.items()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def changed_paths(before: Any, after: Any) -> tuple[Path, ...]:
    """Return the sorted paths of all values that differ."""
    if before == after:
        return ()
    from deepdiff import DeepDiff  # slow to load

    diff = DeepDiff(before, after, view="tree")
    paths = {tuple(level.path(output_format="list")) for kind in diff.values() for level in kind}
    return tuple(sorted(paths, key=lambda path: [str(part) for part in path]))


def keep_recorded(recorded: Any, desired: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Use the recorded values at these dotted paths if both values exist."""
    merged = plain(desired) if paths else desired
    for path in paths:
        _keep_recorded_at(recorded, merged, path.split("."))
    return merged


def _keep_recorded_at(recorded: Any, target: Any, parts: Sequence[str]) -> None:
    for part in parts[:-1]:
        recorded, target = _at(recorded, part), _at(target, part)
    value = _at(recorded, parts[-1], missing=_MISSING)
    if value is _MISSING:
        return
    if isinstance(target, dict):
        target[parts[-1]] = value
    elif isinstance(target, list) and _at(target, parts[-1], missing=_MISSING) is not _MISSING:
        target[int(parts[-1])] = value


def _at(value: Any, part: str, missing: Any = None) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, missing)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return missing


_MISSING = object()


def plan_digest(changes: Iterable[Change], lineage: str, policies: str) -> str:
    """Return the digest of all changes but no-ops, independent of their order, in a state under these policies."""
    changes = [*changes]
    digests = [change_digest(change) for change in changes if change.action is not Action.NOOP]
    digests += [edit_digest(change.address, change.edit) for change in changes if change.edit]
    return combined_digest(digests, lineage, policies)


def edit_digest(address: Address, edit: str) -> str:
    """Return the digest of an edit of a record."""
    return digest({"address": str(address), "edit": edit})


def combined_digest(changes: Iterable[str], lineage: str, policies: str) -> str:
    """Return the digest of a plan from those of its changes."""
    digests = sorted(changes)
    return digest({"lineage": lineage, "policies": policies, "changes": digests} if digests else {})


def change_digest(change: Change) -> str:
    """Return the digest of what a change does, to which version, and of all that it uses."""
    return digest(
        {
            "address": str(change.address),
            "action": change.action.json_actions,
            "provider": change.provider,
            "after": plain(change.after),
            "replace_paths": [list(path) for path in change.replace_paths],
            "lifecycle": to_json(change.lifecycle),
            "version": change.seen,
            "stops": change.stops.id if change.stops else None,
            "covers": plain(change.covers),
        }
    )


def policies_digest(policies: Iterable[PlanPolicy]) -> str:
    """Return the digest of the set of mandatory policies, wherever they are written; empty without any."""
    mandatory = {
        digest(to_json(replace(policy, where="", waiver=None)))
        for policy in policies
        if policy.level is PolicyLevel.MANDATORY
    }
    return digest(sorted(mandatory)) if mandatory else ""


def with_coverage(desired: DesiredState, versions: Mapping[Address, int], change: Change) -> Change:
    """Add to a change what its digest covers in addition to its values."""
    if change.action is Action.NOOP:
        return change
    covers: dict[str, Any] = {
        "reads": {str(address): versions.get(address, 0) for address in change.depends_on}
    }
    if change.after is not None:
        covers |= _settings(desired, change)
    if change.reuses is not None:
        covers["reuses"] = change.reuses.run.id
    return replace(change, covers=covers)


def _settings(desired: DesiredState, change: Change) -> dict[str, Any]:
    """Return the store and the secrets that a change uses, by name or source, without values."""
    names: set[str | None] = set()
    store: StoreLocation | CheckpointsLocation | None = None
    if change.address.kind is Kind.WEIGHTS:
        auth = WeightsSpec.from_attributes(change.after or {}).auth
        names, store = {auth.auth_secret_name if auth else None}, desired.mirror
    elif change.address.kind is Kind.JOB:
        job = change.job_spec
        login = job.image.docker_auth if job.image else None
        names = {*job.runtime.secret_environment.values(), *(login.secrets if login else ())}
        if job.runtime.checkpointing_config.enabled or job.runtime.loads:
            store = desired.checkpoints
    names.add(store.secret if store else None)
    secrets = {name: to_json(spec) for name, spec in desired.secrets.items() if name in names}
    return {"store": to_json(store), "secrets": secrets}


def summarize_changes(changes: Iterable[Change]) -> list[str]:
    """Return a line for each change but no-ops: address, actions and the paths that differ; the first of many."""
    acting = [change for change in changes if change.acts]
    lines = [
        f"{change.address}: {change.edit or ' and '.join(change.action.json_actions)}"
        + differing_paths(change.before, change.after)
        for change in acting[:_MOST_NAMED]
    ]
    more = len(acting) - len(lines)
    return [*lines, f"and {more} more"] if more else lines or ["nothing"]


def differing_paths(before: Any, after: Any) -> str:
    """Return the first paths that differ as `` (a.b, c)``; empty if one of the values is missing."""
    if before is None or after is None:
        return ""
    paths = [".".join(map(str, path)) for path in changed_paths(plain(before), plain(after))]
    more = ", …" if len(paths) > _MOST_PATHS else ""
    return f" ({', '.join(paths[:_MOST_PATHS])}{more})" if paths else ""


_MOST_NAMED, _MOST_PATHS = 20, 5


def with_images(plan: Plan, found: Mapping[str, str | TrainctlError]) -> Plan:
    """Add the digests of images, or the errors of their registries, to the rows and to what new runs cover."""
    digests = {image: value for image, value in found.items() if isinstance(value, str)}
    reasons = {image: value.summary for image, value in found.items() if not isinstance(value, str)}
    rows = tuple(
        replace(row, digest=digests.get(row.image), unresolved_reason=reasons.get(row.image, ""))
        for row in plan.images
    )
    images = {row.job: row.digest for row in rows}
    changes = tuple(
        replace(change, covers={**change.covers, "image_digest": images[change.address]})
        if change.address in images
        else change
        for change in plan.changes
    )
    digest_ = plan_digest(changes, plan.lineage, plan.policies)
    return replace(plan, images=rows, changes=changes, digest=digest_)
