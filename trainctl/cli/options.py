"""Options that several commands share, the global ones, and the forms in which results are printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trainctl import __version__
from trainctl.base.units import parse_duration
from trainctl.cli.session import LogLevel, session_of
from trainctl.errors import UsageError
from trainctl.views.terminal.output import TerminalOutput


class OutputFormat(StrEnum):
    """Text for people, or JSON."""

    TEXT = "text"
    JSON = "json"


class TableFormat(StrEnum):
    """Formats of results that have rows."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


class PlanFormat(StrEnum):
    """Formats of a plan or a state."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


OUTPUT, SCOPE, POLICY = "Output", "Scope", "Variables and policy"
"""Sections of help pages; an option without one is listed under "Options"."""

FormatOption = Annotated[
    OutputFormat,
    typer.Option("--format", metavar="FORMAT", help="text or json", rich_help_panel=OUTPUT),
]
TableFormatOption = Annotated[
    TableFormat,
    typer.Option("--format", metavar="FORMAT", help="text, json or csv", rich_help_panel=OUTPUT),
]
PlanFormatOption = Annotated[
    PlanFormat,
    typer.Option(
        "--format", metavar="FORMAT", help="text, json, markdown or html", rich_help_panel=OUTPUT
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="Job, e.g. job.train")]
PlanFileArgument = Annotated[
    Path | None, typer.Argument(metavar="PLANFILE", help='Plan saved by "trainctl plan --out"')
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Run ID or number [default: latest]")
]
OUTPUT_DIR_HELP = "Directory to download to [default: current directory]"
OutputDirectory = Annotated[
    Path,
    typer.Option(
        "--output-dir",
        metavar="DIR",
        help=OUTPUT_DIR_HELP,
        show_default=False,
    ),
]
Refresh = Annotated[
    bool,
    typer.Option(
        "--refresh/--no-refresh",
        help="Don't inspect nodes or refresh the state",
        rich_help_panel=SCOPE,
    ),
]
RefreshOnly = Annotated[
    bool, typer.Option("--refresh-only", help="Only report drift", rich_help_panel=SCOPE)
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Don't use the network", rich_help_panel=SCOPE)
]
Upgrade = Annotated[
    bool,
    typer.Option(
        "--upgrade",
        help="Update trainctl.lock to the latest upstream revisions",
        rich_help_panel=SCOPE,
    ),
]
Destroy = Annotated[
    bool,
    typer.Option("--destroy", help="Plan to destroy all managed resources", rich_help_panel=SCOPE),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="ADDRESS",
        help="Only this resource and its dependencies; with --destroy, this resource and its "
        "dependents (repeatable)",
        rich_help_panel=SCOPE,
    ),
]
Excludes = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="ADDRESS",
        help="Skip this resource and its dependents; with --destroy, keep this resource and its "
        "dependencies (repeatable)",
        rich_help_panel=SCOPE,
    ),
]
DestroyTargets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="ADDRESS",
        help="Destroy only this resource and its dependents (repeatable)",
        rich_help_panel=SCOPE,
    ),
]
DestroyExcludes = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="ADDRESS",
        help="Keep this resource and its dependencies (repeatable)",
        rich_help_panel=SCOPE,
    ),
]
Replaces = Annotated[
    list[str] | None,
    typer.Option(
        "--replace",
        metavar="ADDRESS",
        help="Force replacement of this resource (repeatable)",
        rich_help_panel=SCOPE,
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--var", metavar="NAME=VALUE", help="Set a variable (repeatable)", rich_help_panel=POLICY
    ),
]
VarFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--var-file",
        metavar="FILE",
        help="Load variables from YAML or TOML (repeatable)",
        rich_help_panel=POLICY,
    ),
]
TrustFile = Annotated[
    Path | None,
    typer.Option(
        "--trust",
        metavar="FILE",
        help="Trust file to use instead of ~/.config/trainctl/trust.toml",
        rich_help_panel=POLICY,
    ),
]
Parallelism = Annotated[
    int,
    typer.Option(
        "--parallelism", metavar="N", help="Maximum concurrent operations", rich_help_panel=POLICY
    ),
]
AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Skip the confirmation prompt")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be deleted, without deleting it")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Stream new output until the run ends")
]
StopRunning = Annotated[bool, typer.Option("--stop-running", help="Allow stopping live runs")]


@dataclass(frozen=True, slots=True)
class PlanningFlags:
    """The planning options of one command, as typed."""

    refresh: bool = True
    refresh_only: bool = False
    offline: bool = False
    upgrade: bool = False
    destroy: bool = False
    targets: Sequence[str] | None = None
    excludes: Sequence[str] | None = None
    replaces: Sequence[str] | None = None
    runs: Sequence[str] = ()
    variables: Sequence[str] | None = None
    var_files: Sequence[Path] | None = None
    parallelism: int = 10
    resume: bool = False
    repeat: str | None = None
    delete_checkpoints: bool = False
    trust: Path | None = None

    def __post_init__(self) -> None:
        if self.parallelism < 1:
            raise UsageError(f"--parallelism {self.parallelism}: must be at least 1")

    @property
    def assignments(self) -> dict[str, str]:
        """``--var`` values; UsageError for one without ``=``. The last of a name wins."""
        pairs = [value.partition("=") for value in self.variables or ()]
        for name, equals, _ in pairs:
            if not (name and equals):
                raise UsageError(f"--var {name!r}: missing value", "Use --var NAME=VALUE.")
        return {name: value for name, _, value in pairs}


def invalid_value(flag: str, error: ValueError) -> UsageError:
    """Return the error of an option's value; the part after ``;`` says what to use instead."""
    summary, _, advice = str(error).partition("; ")
    return UsageError(f"{flag}: {summary}", f"{advice[:1].upper()}{advice[1:]}." if advice else "")


def duration(flag: str, text: str) -> float:
    """Seconds of ``1m`` or a plain number; UsageError names the flag."""
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise invalid_value(flag, error) from None


Rows = tuple[Sequence[str], Iterable[Mapping[str, Any]]]
"""Names of columns, and rows that have those members."""


def print_result(
    output: TerminalOutput,
    format_: str,
    form: Mapping[str, Any],
    lines: Iterable[str],
    rows: Rows = ((), ()),
) -> None:
    """Print a result in the format that was asked for."""
    if format_ == "json":
        output.json(form)
    elif format_ == "csv":
        from trainctl.views.terminal.tables import csv_lines

        for line in csv_lines(*rows):
            output.print(line)
    else:
        output.prose(*lines)


def global_options(
    ctx: typer.Context,
    chdir: Annotated[
        Path | None, typer.Option("--chdir", "-C", metavar="DIR", help="Run as if started in DIR")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="URL", help="Location of the state [default: from the manifest]"
        ),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", metavar="LEVEL", help="error, warning, info or debug"),
    ] = LogLevel.WARNING,
    no_color: Annotated[bool, typer.Option("--no-color", help="Disable colored output")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    """Run training jobs on your own machines, planned and reviewed like infrastructure."""
    session = session_of(ctx)
    session.set_log_level(log_level)
    session.state_url = state
    if no_color:
        session.output.color = False
    if chdir is not None:
        if not chdir.is_dir():
            raise UsageError(f"-C {chdir}: no such directory")
        ctx.with_resource(contextlib.chdir(chdir))
    try:
        session.directory = Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory no longer exists", "Change to a directory that exists."
        ) from None
    if version or ctx.invoked_subcommand is None:
        session.output.print(f"trainctl {__version__}" if version else ctx.get_help())
        raise typer.Exit
