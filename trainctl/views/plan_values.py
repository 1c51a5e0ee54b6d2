"""Rows of attributes as aligned lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import ndiff
from types import MappingProxyType
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.views.escape import escape_lines, literal
from trainctl.views.plan_rows import MISSING, Path, Row, is_code, multiline
from trainctl.views.text import Style, columns, counted, pad

UNKNOWN = "(known after apply)"
_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}|([0-9a-f]{12})[0-9a-f]{28}")
_LONGEST_NAME = 44
_NEXT_TO_NAMES = 36
"""Columns that are left for values where names are aligned."""
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_INDENT = "      "


@dataclass(frozen=True, slots=True)
class Page:
    """How wide the text may be, and how it is painted."""

    width: int
    style: Style


def row_lines(
    rows: Sequence[Row],
    page: Page,
    forces: Iterable[Path] = (),
    unknown: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """The rows, names aligned; values that don't fit beside each other stand one below the other.

    ``unknown`` are names of what only apply will know, each with its value until then, None where it has none.
    """
    names = [row.name for row in rows]
    most = min(_LONGEST_NAME, page.width - _NEXT_TO_NAMES)
    widths = [width for width in map(columns, names) if width <= most]
    size = max([*widths, *(len(name) for name in unknown)], default=0)
    forced = tuple(forces)
    lines: list[str] = []
    for row, name in zip(rows, names, strict=True):
        mark = page.style("  # forces replacement", "red") if _is_forced(row.path, forced) else ""
        lines += _row(row, name, size, page, mark)
    return lines + [
        f"{_INDENT}{_symbol('~', page)} {pad(name, size)} = {_until(name, before)}{UNKNOWN}"
        for name, before in unknown.items()
    ]


def hidden_line(count: int, page: Page) -> list[str]:
    """How many attributes stay as they are."""
    text = f"{_INDENT}  # ({counted(count, 'unchanged attribute')} hidden)"
    return [page.style(text, "dim")] if count else []


def brief(value: Any) -> str:
    """A value in one line; digests and commits are cut short, as nobody reads them whole."""
    if isinstance(value, str):
        digest = _DIGEST.fullmatch(value)
        return digest[1] or digest[2] if digest else literal(value)
    return code_words(value) if is_code(value) else literal(value)


def code_words(code: Mapping[str, Any]) -> str:
    """A code tree in one line: where, how much, which."""
    path, digest = literal(code["path"]), str(code["digest"] or "").removeprefix("sha256:")[:12]
    if code["bytes"] is None:
        return path
    return f"{path} ({counted(code['files'], 'file')}, {format_bytes(code['bytes'])}, {digest})"


def _row(row: Row, name: str, size: int, page: Page, mark: str) -> list[str]:
    head = f"{_INDENT}{_symbol(row.symbol, page)} "
    if multiline(row.before) or multiline(row.after):
        return [f"{head}{name}:{mark}", *_block(row, page)]
    values = _beside(row)
    if row.symbol != "~" or _fits(name, size, values, page):
        return [f"{head}{pad(name, size)} = {values}{mark}"]
    return [
        f"{head}{name}:{mark}",
        _line("-", brief(row.before), page),
        _line("+", brief(row.after), page),
    ]


def _beside(row: Row) -> str:
    after = _worded(row, row.after)
    if row.before is MISSING:
        return after
    before = _worded(row, row.before)
    return f"{before} -> null" if row.after is MISSING else f"{before} -> {after}"


def _worded(row: Row, value: Any) -> str:
    return "" if value is MISSING else _sized(row.path, value)


def _until(name: str, before: Any) -> str:
    return "" if before is None else f"{_sized((name,), before)} -> "


def _sized(path: Path, value: Any) -> str:
    return format_bytes(value) if path == ("bytes",) and isinstance(value, int) else brief(value)


def _fits(name: str, size: int, values: str, page: Page) -> bool:
    return len(_INDENT) + 2 + max(size, columns(name)) + 3 + columns(values) <= page.width


def _block(row: Row, page: Page) -> list[str]:
    """A text of several lines; of one that changed, every line, with a sign at those that did."""
    before = escape_lines(row.before) if isinstance(row.before, str) else []
    after = escape_lines(row.after) if isinstance(row.after, str) else []
    if before[-1:] in ([], [""]) and after[-1:] in ([], [""]):
        before, after = before[:-1], after[:-1]  # both end their last line, as texts do
    lines = (line for line in ndiff(before, after) if not line.startswith("?"))
    return [_line(line[0], line[2:], page) for line in lines]


def _line(sign: str, text: str, page: Page) -> str:
    body = f"{sign} {text}".rstrip()
    colour = _COLOURS.get(sign)
    return f"{_INDENT}    {page.style(body, colour) if colour else body}".rstrip()


def _symbol(symbol: str, page: Page) -> str:
    return page.style(symbol, _COLOURS[symbol])


def _is_forced(path: Path, forces: tuple[Path, ...]) -> bool:
    """Whether this attribute, a part of it, or what it is part of is among those."""
    return any(path[: len(one)] == one or one[: len(path)] == path for one in forces)
