"""Flags that several commands share, and the global ones."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.session import LogLevel, session_of
from trainctl.cli.version import as_text
from trainctl.errors import UsageError


class Format(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"


class PlanFormat(StrEnum):
    """How a plan or a state is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


PlanFormatOption = Annotated[
    PlanFormat,
    typer.Option(
        "--format", help="How it is printed; markdown is for pull requests, html a page of its own."
    ),
]


class ListingFormat(StrEnum):
    """How a listing is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


ListingFormatOption = Annotated[
    ListingFormat, typer.Option("--format", help="How the result is printed.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How the result is printed.")]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="A run's id or number; the newest by default."),
]

ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Which, where a project has caches on several."),
]
TeamOption = Annotated[
    bool, typer.Option("--team", help="The cache that all projects of that cluster share.")
]


def global_options(
    ctx: typer.Context,
    chdir: Annotated[
        Path | None,
        typer.Option("--chdir", "-C", metavar="DIR", help="Work in this directory."),
    ] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colour.")] = False,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What is told about the work itself.")
    ] = LogLevel.WARNING,
    state: Annotated[
        str | None, typer.Option("--state", metavar="URL", help="Where the state is kept.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Plan, review and apply training jobs and their weights on machines you own."""
    session = session_of(ctx)
    session.set_log_level(log_level)
    session.state_url = state
    if no_color:
        session.output.color = False
    if chdir is not None:
        ctx.with_resource(_inside(chdir))
    session.directory = _here()
    if version or ctx.invoked_subcommand is None:
        session.output.print(as_text() if version else ctx.get_help())
        raise typer.Exit


def _inside(directory: Path) -> contextlib.chdir[Path]:
    if not directory.is_dir():
        raise UsageError(f"-C {directory}: there is no such directory")
    return contextlib.chdir(directory)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", "Change to one that exists.") from None
