"""``trainctl version`` and ``trainctl providers``."""

from __future__ import annotations

import platform

import typer

from trainctl import __version__
from trainctl.cli.options import FormatOption, OutputFormat, print_result
from trainctl.cli.session import session_of


def version_command(ctx: typer.Context, format_: FormatOption = OutputFormat.TEXT) -> int:
    """Print the version."""
    form = {
        "trainctl_version": __version__,
        "python_version": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}".lower(),
    }
    print_result(session_of(ctx).output, format_, form, [f"trainctl {__version__}"])
    return 0


def providers_command(ctx: typer.Context, format_: FormatOption = OutputFormat.TEXT) -> int:
    """List installed providers."""
    from trainctl.plugin_api import discovery

    names = discovery.plugin_names(discovery.PROVIDERS)
    print_result(session_of(ctx).output, format_, {"providers": names}, names)
    return 0
