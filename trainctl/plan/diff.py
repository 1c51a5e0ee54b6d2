"""Differences of JSON values, and the digest of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainctl.base.json import digest
from trainctl.model.action import Action
from trainctl.plan.values import Change

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


def plan_digest(changes: Iterable[Change]) -> str:
    """Return the digest of all changes but no-ops, independent of their order."""
    acting = [change for change in changes if change.action is not Action.NOOP]
    return digest(
        [
            {
                "address": str(change.address),
                "action": change.action.json_actions,
                "after": plain(change.after),
                "replace_paths": [list(path) for path in change.replace_paths],
            }
            for change in sorted(acting, key=lambda change: change.address.rank())
        ]
    )
