"""``trainctl version`` and ``trainctl providers``."""

from __future__ import annotations

import platform

import typer

from trainctl import __version__
from trainctl.cli.options import Format, FormatOption, show
from trainctl.cli.session import session_of


def version_command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """Print the version of trainctl."""
    form = {
        "trainctl_version": __version__,
        "python_version": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}".lower(),
    }
    show(session_of(ctx).output, format_, form, [f"trainctl {__version__}"])
    return 0


def providers_command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """List the installed providers."""
    from trainctl.spi import discovery

    names = discovery.names(discovery.PROVIDERS)
    show(session_of(ctx).output, format_, {"providers": names}, names)
    return 0
