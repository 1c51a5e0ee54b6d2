"""``trainctl version``."""

from __future__ import annotations

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.version import as_json, as_text


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """Show the version of trainctl."""
    output = session_of(ctx).output
    if format_ is Format.JSON:
        output.json(as_json())
    else:
        output.print(as_text())
    return 0
