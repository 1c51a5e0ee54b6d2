"""Listings as comma-separated values (RFC 4180): a line of names, then a line for each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows' values under the columns; lists are joined by ``;``, nothing stands for null. No newline at the end."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return stream.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ";".join(map(str, value))
    return "" if value is None else value
