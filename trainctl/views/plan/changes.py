"""Format the changes of a plan: actions, and a row for each attribute that differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from difflib import ndiff
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Kind
from trainctl.model.json_codec import to_json
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.values import AffectedRun, Change, Drift, Plan
from trainctl.plugin_api.machines import MachinePlan
from trainctl.views.terminal.text import (
    Style,
    display_width,
    escape,
    escape_lines,
    literal,
    pad,
    pluralize,
    shorten,
)

Path = tuple[str | int, ...]

MISSING = object()
_KEY = compile_lazily(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class AttributeRow:
    """An attribute's symbol, path, and values (``MISSING`` if absent)."""

    symbol: str
    path: Path
    before: Any = MISSING
    after: Any = MISSING

    @property
    def name(self) -> str:
        """The path as text: ``compute.node_count``, ``weights[0].source``."""
        return format_path(self.path)


@lru_cache(1000)
def format_path(path: Path) -> str:
    """Format a path; those of many resources are the same."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{literal(part)}]"
    return text


def added_rows(value: Any, path: Path = ()) -> Iterator[AttributeRow]:
    """Return the rows of a new value, without empty attributes."""
    return (
        AttributeRow("+", at, MISSING, leaf)
        for at, leaf in _leaves(value, path)
        if not is_empty(leaf)
    )


def removed_rows(value: Any, path: Path = ()) -> Iterator[AttributeRow]:
    """Return the rows of a removed value, without empty attributes."""
    return (
        AttributeRow("-", at, before=leaf)
        for at, leaf in _leaves(value, path)
        if not is_empty(leaf)
    )


def changed_rows(before: Any, after: Any, path: Path = ()) -> Iterator[AttributeRow]:
    """Return the rows of attributes that differ."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping) and not is_code(before):
        for key in dict.fromkeys([*before, *after]):
            yield from changed_rows(before.get(key), after.get(key), (*path, str(key)))
        return
    rows: list[AttributeRow] = []
    if isinstance(before, list) and isinstance(after, list) and before and after:
        rows = list(_list_rows(before, after, path))
    elif is_empty(before):
        rows = list(added_rows(after, path))
    elif is_empty(after):
        rows = list(removed_rows(before, path))
    # Show a difference without rows as one row, so that no change is hidden.
    yield from rows or [AttributeRow("~", path, before, after)]


def is_empty(value: Any) -> bool:
    """Whether a value is null or empty."""
    return value is None or (not value and value in ({}, [], ""))


def is_code(value: Any) -> bool:
    """Whether a value is a job's code tree, which is one attribute."""
    return isinstance(value, Mapping) and value.keys() == {"path", "digest", "files", "bytes"}


def is_multiline(value: Any) -> bool:
    """Whether a value is a multi-line text."""
    return isinstance(value, str) and "\n" in value and "\n" in value.strip("\n")


def _list_rows(before: list[Any], after: list[Any], path: Path) -> Iterator[AttributeRow]:
    """Compare lists: by index if equally long, else by membership."""
    if len(before) == len(after):
        for index, (old, added) in enumerate(zip(before, after, strict=True)):
            yield from changed_rows(old, added, (*path, index))
        return
    for rows_of, items, others in ((removed_rows, before, after), (added_rows, after, before)):
        for index, item in enumerate(items):
            if item not in others:
                yield from rows_of(item, (*path, index))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, str):  # the most frequent case, and the fastest check
        yield path, value
    elif isinstance(value, Mapping) and value and not is_code(value):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, list) and any(
        isinstance(item, Mapping | list) or is_multiline(item) for item in value
    ):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def without_job_defaults(rows: Sequence[AttributeRow]) -> list[AttributeRow]:
    """Return the rows of a new job without those that hold a default."""
    return [row for row in rows if _job_defaults().get(row.path, MISSING) != row.after]


@cache
def _job_defaults() -> dict[Path, Any]:
    return {row.path: row.after for row in added_rows(to_json(JobSpec()))}


LEGEND = {
    Action.CREATE: ("+", "create"),
    Action.REUSE: ("=", "reuse a run"),
    Action.UPDATE: ("~", "update in place"),
    Action.REPLACE: ("-/+", "replace"),
    Action.DELETE: ("-", "destroy"),
    Action.FORGET: (".", "remove from the state only"),
}
COLOURS = {"+": "green", "=": "cyan", "~": "yellow", "-/+": "red", "-": "red", ".": "cyan"}

_REASONS = {
    ActionReason.MISSING: "will be created again: not found",
    ActionReason.SOURCE_MOVED: "will be updated in place: new upstream revision",
    ActionReason.MIRROR_MOVED: "will be updated in place: the mirror has changed",
    ActionReason.NO_CONFIG: "will be destroyed: not in the manifest",
    ActionReason.REMOVED: "will be removed from the state, but not destroyed",
    ActionReason.ENDED: "will be removed from the state: not in the manifest, last run has ended",
}
_JOBS = {
    ActionReason.CANNOT_UPDATE: "must run again: its configuration has changed",
    ActionReason.BY_REQUEST: "will run again, as requested",
    ActionReason.FOLLOWED_RUN: "will run again: the job that it evaluates has a new run",
    ActionReason.BY_TRIGGERS: "will run again: matches rerun_on",
    ActionReason.RUN_FAILED: "will run again: its last run failed and the job has changed since",
    ActionReason.DEPLOY_FAILED: "will run again: its last run could not be deployed",
    ActionReason.RUN_LOST: "will run again: the supervisor or node of its last run was lost",
    ActionReason.INTERRUPTED: "will resume its interrupted start",
}
_ACTIONS = {
    Action.CREATE: "will be created",
    Action.UPDATE: "will be updated in place",
    Action.REPLACE: "must be replaced",
    Action.DELETE: "will be destroyed",
    Action.FORGET: "will be removed from the state",
}


def shown_action(change: Change) -> Action:
    """Return the action whose symbol a change has; an edit of the record is an update."""
    return Action.UPDATE if change.action is Action.NOOP and change.edit else change.action


def headline(change: Change) -> str:
    """Return the comment above a change: the action and its reason."""
    reason = change.reason
    if change.reuses is not None:
        return f"reuses {escape(change.reuses.origin)}"
    if change.action is Action.NOOP:
        return change.edit
    if change.address.kind is Kind.JOB and change.action is Action.REPLACE and reason in _JOBS:
        return _JOBS[reason]
    if reason is ActionReason.BY_REQUEST:
        return "will be replaced, as requested"
    return _REASONS[reason] if reason in _REASONS else _ACTIONS[change.action]


def live_run_text(run: AffectedRun, now: float | None) -> str:
    """Format ``live run 7 (2d 4h, 16 GPUs)``; without ``now``, omit its age."""
    facts = []
    if now is not None and run.started_at is not None:
        facts.append(format_duration(max(now - run.started_at, 0.0)))
    if run.gpus:
        facts.append(pluralize(run.gpus, "GPU"))
    elif run.ranks > 1:
        facts.append(pluralize(run.ranks, "node"))
    return f"live run {run.number:d}" + (f" ({', '.join(facts)})" if facts else "")


UNKNOWN = "(known after apply)"
_DIGEST = compile_lazily(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}|([0-9a-f]{12})[0-9a-f]{28}")
_DIGEST_LENGTHS = (71, 40)
_LONGEST_NAME = 44
_NEXT_TO_NAMES = 36
"""Columns reserved for values next to aligned names."""
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_INDENT = "      "


@dataclass(frozen=True, slots=True)
class PageStyle:
    """Width and style of text; ``table`` and ``attributes`` format those instead, as lines of another form."""

    width: int
    style: Style
    table: Callable[[Mapping[str, Sequence[str]], Container[str]], list[str]] | None = None
    attributes: Callable[..., list[str]] | None = None


def row_lines(
    rows: Sequence[AttributeRow],
    page: PageStyle,
    forces: Iterable[Path] = (),
    unknown: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Return lines of attributes, aligned; long values below each other.

    ``unknown`` maps names of values known after apply to their current values, or None.
    """
    if page.attributes is not None:
        return page.attributes(rows, tuple(forces), unknown)
    names = [row.name for row in rows]
    most = min(_LONGEST_NAME, page.width - _NEXT_TO_NAMES)
    widths = [width for width in map(display_width, names) if width <= most]
    size = max([*widths, *(len(name) for name in unknown)], default=0)
    forced = tuple(forces)
    added = f"{_INDENT}{_symbol('+', page)} "
    lines: list[str] = []
    for row, name in zip(rows, names, strict=True):
        if row.symbol == "+" and not forced and not is_multiline(row.after):
            lines.append(f"{added}{pad(name, size)} = {_formatted_value(row.path, row.after)}")
            continue
        mark = page.style("  # forces replacement", "red") if is_forced(row, forced) else ""
        lines += _row(row, name, size, page, mark)
    for name, before in unknown.items():
        old = "" if before is None else f"{_formatted_value((name,), before)} -> "
        lines.append(f"{_INDENT}{_symbol('~', page)} {pad(name, size)} = {old}{UNKNOWN}")
    return lines


def is_forced(row: AttributeRow, forced: Sequence[Path]) -> bool:
    """Whether the attribute, its parent or a part of it forces replacement."""
    return any(row.path[: len(at)] == at or at[: len(row.path)] == row.path for at in forced)


def hidden_line(hidden: str, page: PageStyle) -> str:
    """Return the line that counts the attributes that are not shown."""
    return page.style(f"{_INDENT}  # ({hidden} hidden)", "dim")


def brief(value: Any) -> str:
    """Format a value in one line; shorten digests and commits."""
    if isinstance(value, str):
        match = _DIGEST.fullmatch(value) if len(value) in _DIGEST_LENGTHS else None
        return match[1] or match[2] if match else literal(value)
    if not is_code(value):
        return literal(value)
    path, digest = literal(value["path"]), str(value["digest"] or "").removeprefix("sha256:")[:12]
    if value["bytes"] is None:
        return path
    return f"{path} ({pluralize(value['files'], 'file')}, {format_bytes(value['bytes'])}, {digest})"


def _row(row: AttributeRow, name: str, size: int, page: PageStyle, mark: str) -> list[str]:
    head = f"{_INDENT}{_symbol(row.symbol, page)} "
    if is_multiline(row.before) or is_multiline(row.after):
        return [f"{head}{name}:{mark}", *_block(row, page)]
    values = value_text(row, row.after)
    if row.before is not MISSING:
        values = f"{value_text(row, row.before)} -> {values or 'null'}"
    line = f"{pad(name, size)} = {values}"
    if row.symbol != "~" or len(_INDENT) + 2 + display_width(line) <= page.width:
        return [f"{head}{line}{mark}"]
    return [
        f"{head}{name}:{mark}",
        _line("-", brief(row.before), page),
        _line("+", brief(row.after), page),
    ]


def value_text(row: AttributeRow, value: Any) -> str:
    """Format a value of an attribute; empty if it is missing."""
    return "" if value is MISSING else _formatted_value(row.path, value)


def _formatted_value(path: Path, value: Any) -> str:
    return format_bytes(value) if path == ("bytes",) and isinstance(value, int) else brief(value)


def _block(row: AttributeRow, page: PageStyle) -> list[str]:
    """Return the lines of a multi-line text as a diff."""
    before = escape_lines(row.before) if isinstance(row.before, str) else []
    after = escape_lines(row.after) if isinstance(row.after, str) else []
    if before[-1:] in ([], [""]) and after[-1:] in ([], [""]):
        before, after = before[:-1], after[:-1]  # both end with a newline
    lines = (line for line in ndiff(before, after) if not line.startswith("?"))
    return [_line(line[0], line[2:], page) for line in lines]


def _line(sign: str, text: str, page: PageStyle) -> str:
    body = f"{sign} {text}".rstrip()
    colour = _COLOURS.get(sign)
    return f"{_INDENT}    {page.style(body, colour) if colour else body}".rstrip()


def _symbol(symbol: str, page: PageStyle) -> str:
    return page.style(symbol, _COLOURS[symbol])


_HIDDEN_ATTRIBUTES = frozenset(
    {"weight_pins", "revision", "pin", "files", "bytes", "matrix", "persisted_secrets"}
)
"""Attributes of new resources that the tables, the address or the headline already show."""


def change_lines(change: Change, plan: Plan, page: PageStyle) -> list[str]:
    """Return a change with its reason and values."""
    sign = LEGEND[shown_action(change)][0]
    if change.action is Action.NOOP:
        return [f"{page.style(f'{sign:>3}', COLOURS[sign])} {change.address} {change.edit}"]
    lines = [page.style(f"  # {change.address} {headline(change)}", "bold")]
    if change.edit:
        lines.append(page.style(f"  # ({change.edit})", "dim"))
    if change.note:
        lines.append(page.style(f"  # ({escape(change.note)})", "dim"))
    secrets = (change.after or {}).get("persisted_secrets")
    if secrets and change.action in (Action.CREATE, Action.REPLACE):
        names = (
            f"secrets {', '.join(secrets)} are" if len(secrets) > 1 else f"secret {secrets[0]} is"
        )
        text = f"  # ({names} stored on the node's disk until the run starts)"
        lines.append(page.style(text, "dim"))
    lines.append(f"{page.style(f'{sign:>3}', COLOURS[sign])} {change.address}")
    lines += _value_lines(change, plan, page)
    lines += _machine_lines(change.machines, page)
    code = plan.code.get(change.address)
    if code is not None and code.excluded:
        names = ", ".join(escape(name) for name in code.excluded)
        lines.append(page.style(f"        # (excluded from upload: {names})", "dim"))
    return lines


_PLATFORM_ACTIONS = {"create": ("+", "add"), "update": ("~", "change"), "delete": ("-", "destroy")}
"""Sign and verb of each action of a provider's platform."""


def _machine_lines(machines: Sequence[MachinePlan], page: PageStyle) -> list[str]:
    """Return what a provider does on its platform, once for nodes with the same changes."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for machine in machines:
        lines = tuple(line for item in machine.changes for line in _platform_lines(item))
        done = [action for item in machine.changes for action in item["actions"]]
        counts = (f"{done.count(name)} to {verb}" for name, (_, verb) in _PLATFORM_ACTIONS.items())
        head = f"by {machine.planner}: {', '.join(counts)}"
        groups.setdefault((head, *lines), []).append(machine.node.name)
    found = ((f" {', '.join(names)} {head}", *rest) for (head, *rest), names in groups.items())
    return [page.style(escape(f"        #{line}"), "dim") for lines in found for line in lines]


def _platform_lines(change: Mapping[str, Any]) -> Iterator[str]:
    sign = "/".join(_PLATFORM_ACTIONS.get(name, ("~",))[0] for name in change["actions"])
    reason = f" ({change['reason'].replace('_', ' ')})" if change["reason"] else ""
    yield f"   {sign} {change['address']}{reason}"
    for name, value in change["values"].items():
        forced = "  # forces replacement" if name in change["replace_paths"] else ""
        text = shorten(json.dumps(value, ensure_ascii=False), 200)
        yield f"         {name} = {text}{forced}"


def similar_lines(change: Change, shown: Change, page: PageStyle) -> list[str]:
    """Return a new job of a matrix by its differences from the first one."""
    sign = LEGEND[change.action][0]
    rows = [
        AttributeRow("+", row.path, after=row.after)
        for row in changed_rows(_new_values(shown), _new_values(change))
        if row.after is not MISSING
    ]
    differs = " except" if rows else ""
    head = f"{page.style(f'{sign:>3}', COLOURS[sign])} {change.address}, same as above{differs}"
    return [head, *row_lines(rows, page)]


def drift_lines(drift: Drift, page: PageStyle) -> list[str]:
    """Return the lines of a drifted resource."""
    detail = f": {escape(drift.detail)}" if drift.detail else ""
    if drift.after is None:
        return [f"  {page.style('-', 'red')} {drift.address} not found{detail}"]
    rows = list(changed_rows(drift.before, drift.after))
    head = f"  {page.style('~', 'yellow')} {drift.address}{detail}"
    return [head, *row_lines(rows, page)]


def _value_lines(change: Change, plan: Plan, page: PageStyle) -> list[str]:
    if change.action is Action.REUSE and change.before is None:
        return []
    if change.action is Action.CREATE:
        rows = list(added_rows(_new_values(change)))
        shown_rows = without_job_defaults(rows) if change.address.kind is Kind.JOB else rows
        lines = row_lines(shown_rows, page)
        if hidden := len(rows) - len(shown_rows):
            state = "at its default" if hidden == 1 else "at their defaults"
            lines.append(hidden_line(f"{pluralize(hidden, 'attribute')} {state}", page))
        return lines
    if change.action in (Action.DELETE, Action.FORGET):
        return _destroyed_lines(change, plan)
    before, after = dict(change.before or {}), dict(change.after or {})
    names = [key for key in change.after_unknown if after.get(key) is None]
    unknown = {key: before.pop(key, None) for key in names}
    rows = list(changed_rows(before, after))
    touched = {row.path[0] for row in rows}
    same = len([key for key, value in after.items() if value is not None and key not in touched])
    shown = {} if change.address.kind is Kind.JOB else unknown
    lines = row_lines(rows, page, change.replace_paths, shown)
    if same:
        lines.append(hidden_line(pluralize(same, "unchanged attribute"), page))
    return lines


def _new_values(change: Change) -> dict[str, Any]:
    """Return the attributes to show of a new resource."""
    after = {
        key: value for key, value in (change.after or {}).items() if key not in _HIDDEN_ATTRIBUTES
    }
    if "weights" in after:
        after["weights"] = [
            " at ".join(filter(None, (str(item["address"]), item.get("mount_location"))))
            for item in after["weights"]
        ]
    return after


def _destroyed_lines(change: Change, plan: Plan) -> list[str]:
    """Return facts that identify a resource to be destroyed."""
    outputs = change.outputs
    values = {"source": (change.before or {}).get("source"), "directory": outputs.get("directory")}
    facts = [f"{key} = {literal(value)}" for key, value in values.items() if value]
    if outputs.get("nodes"):
        facts.append(f"nodes: {', '.join(escape(str(node['name'])) for node in outputs['nodes'])}")
    if outputs.get("runs"):
        becomes = "are deleted" if plan.options.delete_checkpoints else "are kept"
        facts.append(f"{pluralize(len(outputs['runs']), 'run')}; checkpoints {becomes}")
    return [f"{_INDENT}{fact}" for fact in facts]
