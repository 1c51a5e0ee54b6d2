"""Values as JSON: which of them differ, and the digest of all that a plan would do.

The only user of deepdiff, which is heavy: it is loaded when the first difference is asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainctl.base.json import digest
from trainctl.model.action import Action
from trainctl.plan.values import Change

Path = tuple[str | int, ...]

_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """The value with every mapping as a dict and every sequence as a list, as it comes back from JSON."""
    # Most values are atoms, in dicts: asking for exact types first keeps planning fast where much is unchanged.
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: one if type(one) in _ATOMS else plain(one) for key, one in value.items()}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value


def changed_paths(before: Any, after: Any) -> tuple[Path, ...]:
    """The paths of the values that differ, sorted; of a list, the places where it does."""
    if before == after:
        return ()
    from deepdiff import DeepDiff  # heavy

    found = DeepDiff(before, after, view="tree")
    paths = {tuple(level.path(output_format="list")) for kind in found.values() for level in kind}
    return tuple(sorted(paths, key=lambda path: [str(part) for part in path]))


def keep_recorded(recorded: Any, wanted: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """``wanted`` with the recorded values at these dotted paths; a path that either side lacks changes nothing."""
    result = plain(wanted) if paths else wanted
    for path in paths:
        _keep_recorded_at(recorded, result, path.split("."))
    return result


def _keep_recorded_at(recorded: Any, wanted: Any, parts: Sequence[str]) -> None:
    for part in parts[:-1]:
        recorded, wanted = _at(recorded, part), _at(wanted, part)
    kept = _at(recorded, parts[-1], missing=_MISSING)
    if kept is _MISSING:
        return
    if isinstance(wanted, dict):
        wanted[parts[-1]] = kept
    elif isinstance(wanted, list) and _at(wanted, parts[-1], missing=_MISSING) is not _MISSING:
        wanted[int(parts[-1])] = kept


def _at(value: Any, part: str, missing: Any = None) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, missing)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return missing


_MISSING = object()


def plan_digest(changes: Iterable[Change]) -> str:
    """The digest of the changes that do something, whatever their order."""
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
