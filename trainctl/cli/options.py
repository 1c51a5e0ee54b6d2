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


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Output format.")]
TableFormatOption = Annotated[TableFormat, typer.Option("--format", help="Output format.")]
PlanFormatOption = Annotated[
    PlanFormat, typer.Option("--format", help="Output format; markdown is for pull requests.")
]
JobArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Run ID or number; the newest by default.")
]
Refresh = Annotated[
    bool, typer.Option("--refresh/--no-refresh", help="Inspect nodes and refresh the state.")
]
RefreshOnly = Annotated[bool, typer.Option("--refresh-only", help="Only report drift.")]
Offline = Annotated[bool, typer.Option("--offline", help="Don't use the network.")]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Update trainctl.lock to what upstream has now.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="ADDRESS", help="Only this and what it depends on (repeatable)."
    ),
]
Excludes = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="ADDRESS", help="All but this and what depends on it (repeatable)."
    ),
]
Replaces = Annotated[
    list[str] | None,
    typer.Option("--replace", metavar="ADDRESS", help="Force replacement of this (repeatable)."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="Set a variable (repeatable)."),
]
VarFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--var-file", metavar="FILE", help="Load variables from YAML or TOML (repeatable)."
    ),
]
TrustFile = Annotated[
    Path | None,
    typer.Option("--trust", metavar="FILE", help="Trust file to use in place of the user's."),
]
Parallelism = Annotated[
    int, typer.Option("--parallelism", metavar="N", help="Maximum concurrent operations.")
]
AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Skip the confirmation prompt.")]
StopRunning = Annotated[
    bool, typer.Option("--stop-running", help="Stop live runs that the plan replaces or removes.")
]


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
            raise UsageError(f"--parallelism {self.parallelism}: at least 1")

    @property
    def assignments(self) -> dict[str, str]:
        """``--var`` values; UsageError for one without ``=``. The last of a name wins."""
        pairs = [value.partition("=") for value in self.variables or ()]
        for name, equals, _ in pairs:
            if not (name and equals):
                raise UsageError(f"--var {name!r}: write --var NAME=VALUE")
        return {name: value for name, _, value in pairs}


def duration(flag: str, text: str) -> float:
    """Seconds of ``1m`` or a plain number; UsageError names the flag."""
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


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
        Path | None,
        typer.Option("--chdir", "-C", metavar="DIR", help="Run as if started in this directory."),
    ] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colour.")] = False,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="Set the log verbosity.")
    ] = LogLevel.WARNING,
    state: Annotated[
        str | None, typer.Option("--state", metavar="URL", help="Location of the state.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Plan, review and apply training jobs and their weights on machines you own."""
    session = session_of(ctx)
    session.set_log_level(log_level)
    session.state_url = state
    if no_color:
        session.output.color = False
    if chdir is not None:
        if not chdir.is_dir():
            raise UsageError(f"-C {chdir}: there is no such directory")
        ctx.with_resource(contextlib.chdir(chdir))
    try:
        session.directory = Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", "Change to one that exists.") from None
    if version or ctx.invoked_subcommand is None:
        session.output.print(f"trainctl {__version__}" if version else ctx.get_help())
        raise typer.Exit
