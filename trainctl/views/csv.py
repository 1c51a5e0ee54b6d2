"""Listings as comma-separated values (RFC 4180): a line of names, then a line for each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The names of the columns, then each row's values under them; lists are joined by ``;``, nothing stands for null. No newline at their ends."""
    yield _line(columns)
    for row in rows:
        yield _line([_cell(row.get(column)) for column in columns])


def _line(cells: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ";".join(map(str, value))
    return "" if value is None else value
