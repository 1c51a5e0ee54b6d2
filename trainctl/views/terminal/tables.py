"""Tables: columns that are aligned, shortened and left out to fit a width; and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.text import Style, display_width, pad, plain, shorten

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
    """Aligned columns under dim headers, a line for each row whatever its cells hold; a column that says nothing is left out. ``right`` names those of numbers.

    Cells shrink only where ``width`` says so, only those of the columns ``shrinks``, if it names any, and no further than to
    ``narrowest`` of theirs; where that is not enough, those of ``drops`` go, in that order, and if that isn't either, none goes or shrinks.
    ``paint`` is given a row's number, a header and the cell's text, and gives that text in a style.
    """
    said = [i for i in range(len(headers)) if not rows or any(row[i] for row in rows)]
    lines = [[escape(line[i]) for i in said] for line in (headers, *rows)]
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
            shown(number, *each) for each in zip(line, widths, headers, strict=True)
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
    """The lines without the columns that have to go, if that helps, and how narrow each of the others may be."""

    def least(kept: list[list[str]]) -> list[int]:
        return [
            min(size, narrowest.get(header, _NARROWEST))
            if shrinks is None or header in shrinks
            else size
            for size, header in zip(_widths(kept), kept[0], strict=True)
        ]

    kept = lines
    for header in (*(drop for drop in drops if drop in lines[0]), None):
        if sum(least(kept)) + _gap_width(kept) <= available:
            return kept, least(kept)
        if header is not None:
            gone = kept[0].index(header)
            kept = [[*line[:gone], *line[gone + 1 :]] for line in kept]
    return lines, least(lines)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, cells)) for cells in zip(*lines, strict=True)]


def _gap_width(lines: Sequence[Sequence[str]]) -> int:
    """The columns between the cells of a line."""
    return 2 * (len(lines[0]) - 1)


def _shrink_widths(widths: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """The widths, with the widest made narrower until all fit; as they are if they can't: a row that is broken anyway loses nothing."""
    widths = list(widths)
    if sum(least) > available:
        return widths
    while sum(widths) > available:
        may = [i for i, size in enumerate(widths) if size > least[i]]
        widths[max(may, key=widths.__getitem__)] -= 1
    return widths


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line of names, then the rows' values under them: lists joined by ``;``, nothing for null. Without line ends."""
    yield _csv_line(columns)
    for row in rows:
        yield _csv_line([_csv_cell(row.get(column)) for column in columns])


def _csv_line(cells: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def _csv_cell(value: Any) -> Any:
    """The value as a spreadsheet may show it: text that looks like a formula is quoted."""
    if isinstance(value, list | tuple):
        value = ";".join(map(str, value))
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return "" if value is None else value
