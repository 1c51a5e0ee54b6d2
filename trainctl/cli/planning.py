"""The planning flags, which plan, apply, destroy and run share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trainctl.base.units import parse_duration
from trainctl.errors import UsageError

Refresh = Annotated[
    bool, typer.Option("--refresh/--no-refresh", help="Look at machines and at what is recorded.")
]
RefreshOnly = Annotated[bool, typer.Option("--refresh-only", help="Only show what has drifted.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use no network.")]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Move locked sources to what upstream has now.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="ADDRESS", help="Only this and what it needs; may be repeated."
    ),
]
Excludes = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="ADDRESS", help="All but this and what needs it; may be repeated."
    ),
]
Replaces = Annotated[
    list[str] | None,
    typer.Option("--replace", metavar="ADDRESS", help="Make this anew; may be repeated."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="Set a variable; may be repeated."),
]
VarFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--var-file", metavar="FILE", help="Set variables from YAML or TOML; may be repeated."
    ),
]
TrustFile = Annotated[
    Path | None,
    typer.Option(
        "--trust", metavar="FILE", help="What manifests may do, in place of the user's trust.toml."
    ),
]
Parallelism = Annotated[
    int, typer.Option("--parallelism", metavar="N", help="How many things are done at once.")
]
AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Don't ask.")]
StopRunning = Annotated[
    bool, typer.Option("--stop-running", help="Stop live runs where the plan says so.")
]


@dataclass(frozen=True, slots=True)
class PlanningFlags:
    """What the flags of one command said, as words."""

    refresh: bool = True
    refresh_only: bool = False
    offline: bool = False
    upgrade: bool = False
    destroy: bool = False
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    var_files: tuple[Path, ...] = ()
    parallelism: int = 10
    resume: bool = False
    again: str | None = None
    delete_checkpoints: bool = False
    trust: Path | None = None

    def __post_init__(self) -> None:
        if self.parallelism < 1:
            raise UsageError(f"--parallelism {self.parallelism}: at least 1")


def words(values: list[str] | None) -> tuple[str, ...]:
    """A repeated flag's values."""
    return tuple(values or ())


def duration(flag: str, text: str) -> float:
    """Seconds of ``1m`` or a plain number; UsageError names the flag."""
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def assignments(values: tuple[str, ...]) -> dict[str, str]:
    """``--var`` values; UsageError for one without ``=``. The last of a name wins."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise UsageError(f"--var {name!r}: write --var NAME=VALUE")
    return {name: value for name, _, value in pairs}
