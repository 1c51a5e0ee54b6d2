"""Group the addresses and the equal changes of a plan, so that large plans stay readable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change, Plan
from trainctl.views.plan.changes import LEGEND, PageStyle, change_lines, headline
from trainctl.views.terminal.text import escape, shorten, wrap

_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE, Action.REUSE)
_ATTRIBUTE = re.compile(r" {6}[-+~] (\S+?):?(?: |$)")
_ENDINGS = ("$", r"[0-9][^-_.]*$", r"[^A-Za-z].*", ".*")
"""What common prefixes of names lack, from only the keys of a matrix to whole names."""
_WIDEST = 90


def group_labels(addresses: Sequence[Address], most: int) -> list[str]:
    """Return addresses, or if they are more than ``most``, common prefixes with counts."""
    groups = {str(address): [address] for address in addresses}
    for ending in _ENDINGS:
        if len(groups) <= most:
            break
        groups = {}
        for address in addresses:
            stem = re.sub(ending, "", address.name, count=1)
            key = "[*]" if ending == "$" and address.key is not None else "*"
            groups.setdefault(f"{address.kind}.{stem}{key}", []).append(address)
    return [
        f"{label} ({len(group)})" if len(group) > 1 else shorten(escape(str(group[0])), _WIDEST)
        for label, group in groups.items()
    ]


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
    what = "Also, with their own values" if similar else "The same for"
    return [_group(members, page, names, rest, what) for members in groups.values()]


def _attributes(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(match[1] for match in map(_ATTRIBUTE.match, lines) if match))


def _group(
    members: Sequence[tuple[Change, list[str]]],
    page: PageStyle,
    names: int | None,
    rest: str,
    what: str,
) -> ChangeGroup:
    (first, lines), *others = members
    name = str(first.address)
    if others:
        is_matrix = len({change.address.group for change, _ in members}) == 1
        label = f"{first.address.group}[*]" if is_matrix else f"{first.address.kind}.*"
        name = f"{label} ({len(members)})"
        named = ", ".join(escape(str(change.address)) for change, _ in others[:names])
        more = len(others) - names if names is not None else 0
        left = f" and {more} more: {rest}" if more > 0 else ""
        lines = [*lines, *wrap(f"        # {what}: {named}{left}", page.width)]
    if first.action in (Action.UPDATE, Action.REPLACE) and (changed := _attributes(lines)):
        name += f": {shorten(', '.join(changed), _WIDEST)}"
    return ChangeGroup(f"{LEGEND[first.action][0]} {name}", lines, len(members))
