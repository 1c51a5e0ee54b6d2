"""Tables that fit a width, and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.views.terminal.text import Style, display_width, escape, pad, plain, shorten

_NARROWEST = 10
_FORMULA = re.compile(r"[=+@]|-(?![-rwxsStT]{9}$)")
"""Text that a spreadsheet would compute; permissions are not."""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
    shrinks: frozenset[str] | None = None,
    narrowest: Mapping[str, int] | None = None,
    drops: Sequence[str] = (),
    style: Style = plain,
    indent: str = "",
    paint: Callable[[int, str, str], str] | None = None,
) -> list[str]:
    """Return an aligned table with dim headers, without empty columns.

    ``right`` columns are right-aligned. To fit ``width``, the columns ``shrinks`` (None: all) are
    shortened to at least ``narrowest``, then ``drops`` are dropped in order; if that is not
    enough, nothing is shortened or dropped. ``paint(row, header, text)`` styles a cell.
    """
    columns = [i for i in range(len(headers)) if not rows or any(row[i] for row in rows)]
    lines = [[escape(line[i]) for i in columns] for line in (headers, *rows)]
    widths = _widths(lines)
    if width is not None:
        lines, least = _drop_columns(lines, drops, shrinks, narrowest or {}, width - len(indent))
        widths = _shrink_widths(_widths(lines), least, width - len(indent) - _gap_width(lines))
    headers = lines[0]

    def shown(number: int, cell: str, size: int, header: str) -> str:
        text = shorten(cell, size)
        padded = pad(text, size, right=header in right)
        if paint is None or number == 0 or not text:
            return padded
        return padded.replace(text, paint(number - 1, header, text), 1)

    texts = [
        indent
        + "  ".join(
            shown(number, *cell_and_size)
            for cell_and_size in zip(line, widths, headers, strict=True)
        ).rstrip()
        for number, line in enumerate(lines)
    ]
    return [style(texts[0], "dim"), *texts[1:]]


def _drop_columns(
    lines: list[list[str]],
    drops: Sequence[str],
    shrinks: frozenset[str] | None,
    narrowest: Mapping[str, int],
    available: int,
) -> tuple[list[list[str]], list[int]]:
    """Drop columns until the rest fits; return the least widths as well."""

    def least(remaining: list[list[str]]) -> list[int]:
        return [
            min(size, narrowest.get(header, _NARROWEST))
            if shrinks is None or header in shrinks
            else size
            for size, header in zip(_widths(remaining), remaining[0], strict=True)
        ]

    remaining = lines
    for header in (*(drop for drop in drops if drop in lines[0]), None):
        if sum(least(remaining)) + _gap_width(remaining) <= available:
            return remaining, least(remaining)
        if header is not None:
            index = remaining[0].index(header)
            remaining = [[*line[:index], *line[index + 1 :]] for line in remaining]
    return lines, least(lines)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, cells)) for cells in zip(*lines, strict=True)]


def _gap_width(lines: Sequence[Sequence[str]]) -> int:
    """Return the width of the gaps of a line."""
    return 2 * (len(lines[0]) - 1)


def _shrink_widths(widths: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """Reduce the largest widths until all fit; unchanged if impossible."""
    widths = list(widths)
    if sum(least) > available:
        return widths
    while sum(widths) > available:
        may = [i for i, size in enumerate(widths) if size > least[i]]
        widths[max(may, key=widths.__getitem__)] -= 1
    return widths


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield CSV lines without line ends; lists are joined by ``;``."""
    yield _csv_line(columns)
    for row in rows:
        yield _csv_line([_csv_cell(row.get(column)) for column in columns])


def _csv_line(cells: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def _csv_cell(value: Any) -> Any:
    """Format a cell; quote text that looks like a formula."""
    if isinstance(value, list | tuple):
        value = ";".join(map(str, value))
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return "" if value is None else value
