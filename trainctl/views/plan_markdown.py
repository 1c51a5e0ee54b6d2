"""A plan as a comment on a pull request: the counts first, then what stops and goes, by name, then a fold for each change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trainctl.model.action import Action
from trainctl.plan.values import Change, Plan
from trainctl.views.markdown import code, fenced, fold
from trainctl.views.plan_changes import change_lines, drift_lines
from trainctl.views.plan_tables import deliveries_table, images_table, weights_table
from trainctl.views.plan_text import closing_line, cost_lines, left_as_it_is, of_this_plan
from trainctl.views.plan_values import Page
from trainctl.views.plan_words import LEGEND, headline, live_words
from trainctl.views.problems import diagnostic_lines
from trainctl.views.text import plain

LIMIT = 65_536
"""Characters a comment on GitHub may have; other hosts allow more."""

_PAGE = Page(100, plain)
_SECTION = 9_000
"""Characters that each list or table may have, so that all of them leave most of the comment to the changes."""
_FOLD = 16_000
_TAIL = 1_000
"""Kept for what was left out and the digest."""
_SIGN = re.compile(r"( {0,10})(-/\+|[-+~]) ")
"""Lines of a text that is shown in full, and is not changed, stand further in: their dashes are their own."""
_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE)


def plan_markdown(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """The lines of the comment, below GitHub's limit; what did not fit is counted. ``concise`` leaves out the folds."""
    lines = [f"### {closing_line(plan, _PAGE)}", ""]
    for section in (
        _stops(plan.changes, now),
        _named("Destroys", plan.changes, Action.DELETE),
        _named("Replaces", plan.changes, Action.REPLACE),
        _block("Problems", diagnostic_lines(plan.diagnostics)),
        _block("Changed outside of trainctl since it was recorded", _drift(plan)),
        _block("Left as it is", left_as_it_is(plan.changes, _PAGE)),
        _block("Weights", _weights(plan)),
        _block("Deliveries", deliveries_table(plan.deliveries, _PAGE) if plan.deliveries else ()),
        _block("Images", images_table(plan.images, _PAGE) if plan.images else ()),
    ):
        lines += section
    lines += [line for cost in cost_lines(plan, _PAGE) for line in (cost, "")]
    if not concise:
        lines += _changes(plan, LIMIT - _TAIL - _size(lines))
    return [*lines, f"Plan digest: `{plan.digest}`"]


def _stops(changes: Iterable[Change], now: float | None) -> list[str]:
    lines = [
        f"- {code(str(change.address))}: {live_words(change.stops, now)}"
        for change in changes
        if change.stops is not None
    ]
    return _list("Stops live runs (needs `--stop-running`, or a saved plan)", lines)


def _named(title: str, changes: Iterable[Change], action: Action) -> list[str]:
    lines = [
        f"- {code(str(change.address))} {headline(change)}"
        for change in changes
        if change.action is action
    ]
    return _list(title, lines)


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}:**", "", *_clipped(lines, _SECTION, "- "), ""] if lines else []


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}:**", "", *fenced(_clipped(lines, _SECTION)), ""] if lines else []


def _drift(plan: Plan) -> list[str]:
    return [line for one in plan.drift for line in drift_lines(one, _PAGE)]


def _weights(plan: Plan) -> list[str]:
    lines = of_this_plan(plan)
    return weights_table(lines, _PAGE) if lines else []


def _changes(plan: Plan, room: int) -> list[str]:
    """A fold for each change, what can be lost first, for as long as there is room."""
    changes = [change for change in plan.changes if change.action in _FIRST]
    changes.sort(key=lambda change: _FIRST.index(change.action))
    lines: list[str] = []
    for number, change in enumerate(changes):
        text = _clipped([_colored(one) for one in change_lines(change, plan, _PAGE)], _FOLD)
        one = [*fold(f"{LEGEND[change.action][0]} {change.address}", fenced(text, "diff")), ""]
        if _size(lines) + _size(one) > room:
            left = len(changes) - number
            return [
                *lines,
                f"**{left} of {len(changes)} changes are not shown: a comment has no room for more.**",
                "",
            ]
        lines += one
    return lines


def _colored(line: str) -> str:
    """The line as a diff is coloured: with its sign first, and ``!`` for what is changed."""
    sign = _SIGN.match(line)
    if sign is None:
        return line
    first = sign[2] if sign[2] in "+-" else "!"
    return f"{first}{sign[1] or ' '}{line[sign.end() :]}"


def _clipped(lines: Sequence[str], most: int, before: str = "") -> list[str]:
    """The first lines, and how many there are more where they don't fit."""
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > most:
            return [*kept, f"{before}… and {len(lines) - number} more"]
        kept.append(line)
    return kept


def _size(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)
