"""One change, or one drift, as lines: a headline with the reason, then the values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.model.action import Action
from trainctl.model.address import Kind
from trainctl.plan.values import Change, Drift, Plan
from trainctl.views.escape import escape, literal
from trainctl.views.plan_rows import MISSING, Row, added, changed
from trainctl.views.plan_values import Page, hidden_line, row_lines
from trainctl.views.plan_words import COLOURS, LEGEND, headline
from trainctl.views.text import counted

_SAID = frozenset({"weight_pins", "revision", "pin", "files", "bytes", "matrix", "kept_secrets"})
"""What the tables below, the address or the headline say better, and a new resource need not say twice."""


def change_lines(change: Change, plan: Plan, page: Page) -> list[str]:
    """A change with its reason and its values."""
    sign = LEGEND[change.action][0]
    lines = [page.style(f"  # {change.address} {headline(change)}", "bold")]
    if change.note:
        lines.append(page.style(f"  # ({escape(change.note)})", "dim"))
    if change.action in (Action.CREATE, Action.REPLACE):
        lines += [page.style(f"  # ({line})", "dim") for line in _kept_secrets(change)]
    lines.append(f"{page.style(f'{sign:>3}', COLOURS[sign])} {change.address}")
    return lines + _values(change, plan, page) + _left_out(change, plan, page)


def similar_lines(change: Change, shown: Change, page: Page) -> list[str]:
    """Another new job of the same matrix: what it has that the one shown in full has not."""
    sign = LEGEND[change.action][0]
    rows = [
        Row("+", row.path, after=row.after)
        for row in changed(_shown(shown), _shown(change))
        if row.after is not MISSING
    ]
    differs = " but for" if rows else ""
    head = f"{page.style(f'{sign:>3}', COLOURS[sign])} {change.address}, as above{differs}"
    return [head, *row_lines(rows, page)]


def drift_lines(drift: Drift, page: Page) -> list[str]:
    """What is not as recorded any more."""
    detail = f": {escape(drift.detail)}" if drift.detail else ""
    if drift.after is None:
        return [f"  {page.style('-', 'red')} {drift.address} is gone{detail}"]
    rows = list(changed(drift.before, drift.after))
    head = f"  {page.style('~', 'yellow')} {drift.address}{detail}"
    return [head, *row_lines(rows, page)]


def _values(change: Change, plan: Plan, page: Page) -> list[str]:
    if change.action is Action.CREATE:
        return row_lines(_new(change), page)
    if change.action in (Action.DELETE, Action.FORGET):
        return [f"      {line}" for line in _what_goes(change, plan)]
    before, after = dict(change.before or {}), dict(change.after or {})
    names = [key for key in change.after_unknown if after.get(key) is None]
    unknown = {key: before.pop(key, None) for key in names}
    rows = list(changed(before, after))
    touched = {row.path[0] for row in rows}
    same = len([key for key, value in after.items() if value is not None and key not in touched])
    shown = {} if change.address.kind is Kind.JOB else unknown
    return [
        *row_lines(rows, page, change.replace_paths, shown),
        *hidden_line(same, page),
    ]


def _new(change: Change) -> list[Row]:
    return list(added(_shown(change)))


def _shown(change: Change) -> dict[str, Any]:
    """What is worth showing of a new resource."""
    after = {key: value for key, value in (change.after or {}).items() if key not in _SAID}
    if "weights" in after:
        after["weights"] = [_weights_words(one) for one in after["weights"]]
    return after


def _kept_secrets(change: Change) -> list[str]:
    """Which secrets will lie on a disk, and for how long."""
    names = (change.after or {}).get("kept_secrets")
    if not names:
        return []
    which = f"secrets {', '.join(names)} are" if len(names) > 1 else f"secret {names[0]} is"
    return [f"{which} kept on the node's disk until the run begins"]


def _weights_words(weights: Mapping[str, Any]) -> str:
    place = weights.get("mount_location")
    return f"{weights['address']} at {place}" if place else str(weights["address"])


def _what_goes(change: Change, plan: Plan) -> list[str]:
    """The few things about it that someone would want to recognise."""
    before, outputs = change.before or {}, change.outputs
    found: list[str] = [
        f"{key} = {literal(value)}"
        for key, value in (
            ("source", before.get("source")),
            ("directory", outputs.get("directory")),
        )
        if value
    ]
    if outputs.get("nodes"):
        names = ", ".join(escape(str(node["name"])) for node in outputs["nodes"])
        found.append(f"nodes: {names}")
    if outputs.get("runs"):
        becomes = "are deleted" if plan.options.delete_checkpoints else "stay"
        found.append(f"{counted(len(outputs['runs']), 'run')}; checkpoints {becomes}")
    return found


def _left_out(change: Change, plan: Plan, page: Page) -> list[str]:
    """What of the code directory is not shipped, so that nothing is missing silently."""
    code = plan.code.get(change.address)
    if code is None or not code.left_out:
        return []
    names = ", ".join(escape(name) for name in code.left_out)
    return [page.style(f"        # (not shipped: {names})", "dim")]
