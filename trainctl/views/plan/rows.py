"""Attributes that a change adds, removes or changes, one row each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainctl.model.json_codec import to_json
from trainctl.model.specs.job_spec import JobSpec
from trainctl.views.terminal.text import literal

Path = tuple[str | int, ...]

MISSING = object()
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


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


def format_path(path: Path) -> str:
    """Format a path."""
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
        AttributeRow("+", at, after=leaf) for at, leaf in _leaves(value, path) if not is_empty(leaf)
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
    lists = isinstance(before, list) and isinstance(after, list) and before and after
    rows = list(_list_rows(before, after, path) if lists else _is_leaf(before, after, path))
    # Show a difference without rows as one row, so that no change is hidden.
    yield from rows or [AttributeRow("~", path, before, after)]


def is_empty(value: Any) -> bool:
    """Whether a value is null or empty."""
    return value is None or value in ({}, [], "")


def is_code(value: Any) -> bool:
    """Whether a value is a job's code tree, which is one attribute."""
    return isinstance(value, Mapping) and value.keys() == {"path", "digest", "files", "bytes"}


def is_multiline(value: Any) -> bool:
    """Whether a value is a multi-line text."""
    return isinstance(value, str) and "\n" in value.strip("\n")


def _is_leaf(before: Any, after: Any, path: Path) -> Iterator[AttributeRow]:
    if is_empty(before):
        yield from added_rows(after, path)
    elif is_empty(after):
        yield from removed_rows(before, path)
    else:
        yield AttributeRow("~", path, before, after)


def _list_rows(before: list[Any], after: list[Any], path: Path) -> Iterator[AttributeRow]:
    """Compare lists: by index if equally long, else by membership."""
    if len(before) == len(after):
        for index, (old, added) in enumerate(zip(before, after, strict=True)):
            yield from changed_rows(old, added, (*path, index))
        return
    removed = [(index, item) for index, item in enumerate(before) if item not in after]
    added = [(index, item) for index, item in enumerate(after) if item not in before]
    for index, item in removed:
        yield from removed_rows(item, (*path, index))
    for index, item in added:
        yield from added_rows(item, (*path, index))


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
    defaults = _job_defaults()
    return [row for row in rows if row.path not in defaults or defaults[row.path] != row.after]


@cache
def _job_defaults() -> dict[Path, Any]:
    return {row.path: row.after for row in added_rows(to_json(JobSpec()))}
