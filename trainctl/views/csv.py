"""Results as comma-separated values (RFC 4180)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line of names, then the rows' values under them: lists joined by ``;``, nothing for null. Without line ends."""
    yield _line(columns)
    for row in rows:
        yield _line([_cell(row.get(column)) for column in columns])


def _line(cells: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """The value as a spreadsheet may show it: text that looks like a formula is quoted."""
    if isinstance(value, list | tuple):
        value = ";".join(map(str, value))
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return "" if value is None else value
