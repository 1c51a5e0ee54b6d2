"""Which attributes a change adds, removes and alters, one row each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.views.terminal.sanitize import literal

Path = tuple[str | int, ...]

MISSING = object()
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class AttributeRow:
    """One attribute: its symbol, its path, and its values (``MISSING`` where there is none on that side)."""

    symbol: str
    path: Path
    before: Any = MISSING
    after: Any = MISSING

    @property
    def name(self) -> str:
        """The path as it is written: ``compute.node_count``, ``weights[0].source``."""
        return format_path(self.path)


def format_path(path: Path) -> str:
    """A path as people write it."""
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
    """The attributes of something new; what says nothing (null, empty) is left out."""
    return (
        AttributeRow("+", at, after=leaf) for at, leaf in _leaves(value, path) if not is_empty(leaf)
    )


def removed_rows(value: Any, path: Path = ()) -> Iterator[AttributeRow]:
    """The attributes of something that goes."""
    return (
        AttributeRow("-", at, before=leaf)
        for at, leaf in _leaves(value, path)
        if not is_empty(leaf)
    )


def changed_rows(before: Any, after: Any, path: Path = ()) -> Iterator[AttributeRow]:
    """The attributes that differ."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping) and not is_code(before):
        for key in dict.fromkeys([*before, *after]):
            yield from changed_rows(before.get(key), after.get(key), (*path, str(key)))
        return
    lists = isinstance(before, list) and isinstance(after, list) and before and after
    rows = list(_list_rows(before, after, path) if lists else _is_leaf(before, after, path))
    # What differs and says nothing on either side, or only in how often, is shown whole: nothing forces a change unseen.
    yield from rows or [AttributeRow("~", path, before, after)]


def is_empty(value: Any) -> bool:
    """Whether a value says nothing."""
    return value is None or value in ({}, [], "")


def is_code(value: Any) -> bool:
    """Whether a value is a job's code tree, which is shown as one."""
    return isinstance(value, Mapping) and value.keys() == {"path", "digest", "files", "bytes"}


def is_multiline(value: Any) -> bool:
    """Whether a value is a text of several lines."""
    return isinstance(value, str) and "\n" in value.strip("\n")


def _is_leaf(before: Any, after: Any, path: Path) -> Iterator[AttributeRow]:
    if is_empty(before):
        yield from added_rows(after, path)
    elif is_empty(after):
        yield from removed_rows(before, path)
    else:
        yield AttributeRow("~", path, before, after)


def _list_rows(before: list[Any], after: list[Any], path: Path) -> Iterator[AttributeRow]:
    """Of lists of one length, what differs in place; else what only one of them has, so that an insertion is one row."""
    if len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed_rows(old, new, (*path, index))
        return
    gone = [(index, one) for index, one in enumerate(before) if one not in after]
    new = [(index, one) for index, one in enumerate(after) if one not in before]
    for index, one in gone:
        yield from removed_rows(one, (*path, index))
    for index, one in new:
        yield from added_rows(one, (*path, index))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, str):  # most are, and this is asked ten times as fast as what follows
        yield path, value
    elif isinstance(value, Mapping) and value and not is_code(value):
        for key, one in value.items():
            yield from _leaves(one, (*path, str(key)))
    elif isinstance(value, list) and any(_nested(one) for one in value):
        for index, one in enumerate(value):
            yield from _leaves(one, (*path, index))
    else:
        yield path, value


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list) or is_multiline(value)
