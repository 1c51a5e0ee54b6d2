"""What commands that list something share: the three forms, and words to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from trainctl.base.units import parse_duration
from trainctl.errors import UsageError
from trainctl.views.csv import csv_lines
from trainctl.views.output import Output


class ListingFormat(StrEnum):
    """How a listing is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


ListingFormatOption = Annotated[
    ListingFormat, typer.Option("--format", help="How the listing is printed.")
]
NodesOption = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Only this node; may be given several times."),
]

Rows = tuple[Sequence[str], Iterable[Mapping[str, Any]]]
"""Names of columns, and rows that have those members."""


def show(
    output: Output,
    format_: ListingFormat,
    form: Mapping[str, Any],
    rows: Rows,
    lines: Iterable[str],
    *,
    member: str | None = None,
) -> None:
    """Print a listing in the form that was asked for; ``member`` names what the rows are in JSON, where the form lacks them as there may be very many."""
    if format_ is ListingFormat.JSON and member is not None:
        output.json_rows(form, member, rows[1])
    elif format_ is ListingFormat.JSON:
        output.json(form)
    elif format_ is ListingFormat.CSV:
        for line in csv_lines(*rows):
            output.print(line)
    else:
        for line in lines:
            output.prose(line)


def seconds(text: str, flag: str) -> float:
    """A duration as it was typed; UsageError names the flag."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
