"""Group the addresses and the equal changes of a plan, so that large plans stay readable."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change, Plan
from trainctl.views.plan.changes import LEGEND, PageStyle, change_lines, headline
from trainctl.views.terminal.text import escape, shorten, wrap

_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE, Action.REUSE)
_ATTRIBUTE = re.compile(r" {6}[-+~] (\S+?):?(?: |$)")
_WIDEST = 90


def _matrix(address: Address) -> str:
    return str(address) if address.key is None else f"{address.group}[*]"


def _prefix(pattern: str) -> Callable[[Address], str]:
    compiled = re.compile(pattern)

    def label(address: Address) -> str:
        match = compiled.match(address.name)
        return f"{address.kind}.{match[0] if match else ''}*"

    return label


_LEVELS: tuple[Callable[[Address], str], ...] = (
    str,
    _matrix,
    _prefix(r"(?:.*[-_.])?[A-Za-z]*"),  # without a number or hash at the end
    _prefix(r"[A-Za-z]+"),
    lambda address: f"{address.kind}.*",
)
"""Names of groups, from single addresses to kinds."""


def group_labels(addresses: Sequence[Address], most: int | None = None) -> list[str]:
    """Return addresses, or if they are more than ``most``, common prefixes with counts."""
    groups: dict[str, list[Address]] = {}
    for level in _LEVELS:
        groups = {}
        for address in addresses:
            groups.setdefault(level(address), []).append(address)
        if most is None or len(groups) <= most:
            break
    return [
        f"{label} ({len(group)})" if len(group) > 1 else _name(group[0], most)
        for label, group in groups.items()
    ]


def _name(address: Address, most: int | None) -> str:
    name = escape(str(address))
    return name if most is None else shorten(name, _WIDEST)


class ChangeGroup(NamedTuple):
    """Changes shown as one: the lines of the first, and the names of the others."""

    title: str
    lines: Sequence[str]
    size: int


def change_groups(
    plan: Plan, page: PageStyle, *, similar: bool = False, names: int | None = None, rest: str = ""
) -> list[ChangeGroup]:
    """Return the changes in full, destructive changes first, equal ones as one.

    ``similar``: also those that change the same attributes to other values. If a group has more than ``names``
    resources, the command ``rest`` shows the others.
    """
    shown = [change for change in plan.changes if change.action in _FIRST]
    groups: dict[tuple[object, ...], list[tuple[Change, list[str]]]] = {}
    for change in sorted(shown, key=lambda change: _FIRST.index(change.action)):
        lines = change_lines(change, plan, page)
        same = (
            _attributes(lines)
            if similar
            else (line.replace(str(change.address), "") for line in lines)
        )
        key = (change.address.kind, change.action, headline(change), *same)
        groups.setdefault(key, []).append((change, lines))
    return [_group(members, page, names, rest) for members in groups.values()]


def _attributes(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(match[1] for match in map(_ATTRIBUTE.match, lines) if match))


def _group(
    members: Sequence[tuple[Change, list[str]]], page: PageStyle, names: int | None, rest: str
) -> ChangeGroup:
    (first, lines), *others = members
    title = f"{LEGEND[first.action][0]} {first.address}"
    if others:
        matrix = {change.address.group for change, _ in members}
        is_matrix = len(matrix) == 1 and first.address.key is not None
        label = f"{first.address.group}[*]" if is_matrix else f"{first.address.kind}.*"
        title = f"{LEGEND[first.action][0]} {label} ({len(members)})"
        named = [escape(str(change.address)) for change, _ in others[:names]]
        more = f" and {len(others) - len(named)} more: {rest}" if len(others) > len(named) else ""
        stripped = {
            tuple(line.replace(str(change.address), "") for line in shown)
            for change, shown in members
        }
        as_well = "The same for" if len(stripped) == 1 else "Other values for"
        lines = [*lines, *wrap(f"        # {as_well}: {', '.join(named)}{more}", page.width)]
    if first.action in (Action.UPDATE, Action.REPLACE) and (changed := _attributes(lines)):
        title += f": {shorten(', '.join(changed), _WIDEST)}"
    return ChangeGroup(title, lines, len(members))
