"""What a reviewer reads of a plan, section by section: the same in Markdown and in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainctl.model.action import Action
from trainctl.plan.values import Change, Plan
from trainctl.views.plan_changes import change_lines, drift_lines
from trainctl.views.plan_tables import deliveries_table, images_table, weights_table
from trainctl.views.plan_text import closing_line, left_as_it_is, of_this_plan
from trainctl.views.plan_values import Page
from trainctl.views.plan_words import LEGEND, headline, live_words
from trainctl.views.problems import diagnostic_lines
from trainctl.views.text import plain

PAGE = Page(100, plain)
_SIGN = re.compile(r"( {0,10})(-/\+|[-+~]) ")
"""Lines of a text that is shown in full, and is not changed, stand further in: their dashes are their own."""
_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE)


class Item(NamedTuple):
    """An address, and what is said of it after the joint."""

    address: str
    words: str
    joint: str = " "


class Section(NamedTuple):
    """A title and, below it, either items or lines of text in columns. Not escaped for where it is shown."""

    title: str
    items: Sequence[Item] = ()
    lines: Sequence[str] = ()


class Signed(NamedTuple):
    """A line of a change: ``+``, ``-`` or ``!`` for what is changed, or nothing; its indentation; the rest."""

    sign: str
    indentation: str
    text: str


def heading(plan: Plan) -> str:
    """The counts."""
    return closing_line(plan, PAGE)


def sections(plan: Plan, now: float | None) -> list[Section]:
    """Those that say something: what stops and goes first, by name, then problems, then tables."""
    weights = of_this_plan(plan)
    found = (
        _stops(plan.changes, now),
        _named("Destroys", plan.changes, Action.DELETE),
        _named("Replaces", plan.changes, Action.REPLACE),
        Section("Problems", lines=diagnostic_lines(plan.diagnostics)),
        Section("Changed outside of trainctl since it was recorded", lines=_drift(plan)),
        Section("Left as it is", lines=left_as_it_is(plan.changes, PAGE)),
        Section("Weights", lines=weights_table(weights, PAGE) if weights else ()),
        Section(
            "Deliveries",
            lines=deliveries_table(plan.deliveries, PAGE) if plan.deliveries else (),
        ),
        Section("Images", lines=images_table(plan.images, PAGE) if plan.images else ()),
    )
    return [one for one in found if one.items or one.lines]


def changes(plan: Plan) -> list[Change]:
    """What is to be shown in full, what can be lost first."""
    found = [change for change in plan.changes if change.action in _FIRST]
    return sorted(found, key=lambda change: _FIRST.index(change.action))


def in_full(change: Change, plan: Plan) -> Section:
    """One change."""
    title = f"{LEGEND[change.action][0]} {change.address}"
    return Section(title, lines=change_lines(change, plan, PAGE))


def signed(line: str) -> Signed:
    """A line of a change, taken apart."""
    sign = _SIGN.match(line)
    if sign is None:
        return Signed("", "", line)
    return Signed(sign[2] if sign[2] in "+-" else "!", sign[1], line[sign.end() :])


def _stops(changes: Iterable[Change], now: float | None) -> Section:
    items = [
        Item(str(change.address), live_words(change.stops, now), ": ")
        for change in changes
        if change.stops is not None
    ]
    return Section("Stops live runs (needs `--stop-running`, or a saved plan)", items)


def _named(title: str, changes: Iterable[Change], action: Action) -> Section:
    items = [
        Item(str(change.address), headline(change)) for change in changes if change.action is action
    ]
    return Section(title, items)


def _drift(plan: Plan) -> list[str]:
    return [line for one in plan.drift for line in drift_lines(one, PAGE)]
