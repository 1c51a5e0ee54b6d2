"""``trainctl providers``."""

from __future__ import annotations

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.spi import discovery


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """List the installed providers."""
    output = session_of(ctx).output
    names = discovery.names(discovery.PROVIDERS)
    if format_ is Format.JSON:
        output.json({"providers": names})
    else:
        for name in names:
            output.print(name)
    return 0
