"""``trainctl version`` and ``trainctl providers``."""

from __future__ import annotations

import platform

from trainctl import __version__
from trainctl.base.lazy_dataclass import asdict
from trainctl.cli.options import FormatOption, OutputFormat, print_result
from trainctl.cli.session import CliSession


def version_command(session: CliSession, format_: FormatOption = OutputFormat.TEXT) -> int:
    """Print the version."""
    form = {
        "trainctl_version": __version__,
        "python_version": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}".lower(),
    }
    print_result(session.output, format_, form, [f"trainctl {__version__}"])
    return 0


def providers_command(session: CliSession, format_: FormatOption = OutputFormat.TEXT) -> int:
    """List installed providers."""
    from trainctl.plugin_api import discovery
    from trainctl.views.terminal.text import table

    rows, lines = [], []
    for name, version in sorted(discovery.plugin_versions(discovery.PROVIDERS).items()):
        capabilities = asdict(discovery.load_provider(name).capabilities)
        settings = list(capabilities.pop("replacement_settings"))
        rows.append(
            {"name": name, "version": version, **capabilities, "replacement_settings": settings}
        )
        machines = "creates machines" if capabilities["creates_machines"] else "existing machines"
        if capabilities["schedules_jobs"]:
            machines = "of a batch system"
        lines.append((name, version, machines))
    print_result(
        session.output,
        format_,
        {"providers": rows},
        table(("PROVIDER", "VERSION", "MACHINES"), lines),
    )
    return 0
