"""Options that several commands share, the global ones, and the forms in which results are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from trainctl.base.lazy_dataclass import dataclass, fields
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.units import parse_duration
from trainctl.cli.session import LogLevel
from trainctl.errors import UsageError

if TYPE_CHECKING:
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


class SortOrder(StrEnum):
    """Sort orders."""

    ASC = "asc"
    DESC = "desc"


class ParameterUsage(NamedTuple):
    """An option as help pages show it, or an argument, which has no names.

    ``negative`` is the spelling of a switch's no; ``panel`` the section of the page.
    """

    names: tuple[str, ...]
    metavar: str
    help: str
    negative: str | None = None
    panel: str | None = None
    show_default: bool = True


class CommandParameter(NamedTuple):
    """A parameter of a function: its name there, how it is typed, and the type of each word."""

    name: str
    usage: ParameterUsage
    kind: Any
    repeatable: bool
    required: bool
    default: Any


def option(
    usage: str, text: str, panel: str | None = None, *, show_default: bool = True
) -> ParameterUsage:
    """Declare an option; ``usage`` is as in help pages: ``-C, --chdir DIR``, or ``--yes/--no``."""
    words = usage.replace(",", "").split()
    metavar = "" if words[-1].startswith("-") else words.pop()
    words[-1], _, negative = words[-1].partition("/")
    return ParameterUsage(tuple(words), metavar, text, negative or None, panel, show_default)


def argument(metavar: str, text: str) -> ParameterUsage:
    """Declare an argument."""
    return ParameterUsage((), metavar, text)


def parameter(name: str, annotation: Any, defaults: Mapping[str, Any]) -> CommandParameter:
    """Return a parameter by its annotation, for example ``Annotated[list[str] | None, option(…)]``."""
    declared, usage = get_args(annotation)
    if isinstance(declared, UnionType):
        declared = next(kind for kind in get_args(declared) if kind is not NoneType)
    repeatable = get_origin(declared) is list
    kind = get_args(declared)[0] if repeatable else declared
    return CommandParameter(name, usage, kind, repeatable, name not in defaults, defaults.get(name))


OUTPUT, SCOPE, POLICY = "Output", "Scope", "Variables and policy"
"""Sections of help pages; an option without one is listed under "Options"."""

FormatOption = Annotated[OutputFormat, option("--format FORMAT", "text or json", OUTPUT)]
TableFormatOption = Annotated[TableFormat, option("--format FORMAT", "text, json or csv", OUTPUT)]
PlanFormatOption = Annotated[
    PlanFormat, option("--format FORMAT", "text, json, markdown or html", OUTPUT)
]
JobArgument = Annotated[str, argument("ADDRESS", "Job, e.g. job.train")]
PlanFileArgument = Annotated[
    Path | None, argument("PLANFILE", 'Plan saved by "trainctl plan --out"')
]
RunOption = Annotated[str | None, option("--run RUN", "Run ID or number [default: latest]")]
OutputDirectory = Annotated[
    Path,
    option(
        "--output-dir DIR",
        "Directory to download to [default: current directory]",
        show_default=False,
    ),
]
AutoApprove = Annotated[bool, option("--auto-approve", "Skip the confirmation prompt")]
DryRun = Annotated[bool, option("--dry-run", "Show what would be done, without doing it")]
AllStates = Annotated[
    bool,
    option("--all", "Every state below --state [default: states this user changed]", SCOPE),
]
Order = Annotated[SortOrder, option("--order ORDER", "Sort order: asc or desc")]
Follow = Annotated[bool, option("-f, --follow", "Stream new output until the run ends")]


@dataclass(frozen=True, slots=True)
class PlanningFlags:
    """The planning options of one command, as typed; a command has those that its ``OptionSelection`` names."""

    destroy: Annotated[
        bool, option("--destroy", "Plan to destroy all managed resources", SCOPE)
    ] = False
    refresh: Annotated[
        bool, option("--refresh/--no-refresh", "Don't inspect nodes or refresh the state", SCOPE)
    ] = True
    refresh_only: Annotated[bool, option("--refresh-only", "Only report drift", SCOPE)] = False
    offline: Annotated[bool, option("--offline", "Don't use the network", SCOPE)] = False
    upgrade: Annotated[
        bool, option("--upgrade", "Update trainctl.lock to the latest upstream revisions", SCOPE)
    ] = False
    untrusted: Annotated[
        bool, option("--untrusted", "Use no state, secret, program or private server", SCOPE)
    ] = False
    concise: Annotated[
        bool, option("--concise", "Show only counts, destroyed and replaced resources", OUTPUT)
    ] = False
    targets: Annotated[
        list[str] | None,
        option(
            "--target ADDRESS",
            "Only this resource and its dependencies; with --destroy, this resource and its dependents (repeatable)",
            SCOPE,
        ),
    ] = None
    excludes: Annotated[
        list[str] | None,
        option(
            "--exclude ADDRESS",
            "Skip this resource and its dependents; with --destroy, keep this resource and its dependencies (repeatable)",
            SCOPE,
        ),
    ] = None
    replaces: Annotated[
        list[str] | None,
        option("--replace ADDRESS", "Force replacement of this resource (repeatable)", SCOPE),
    ] = None
    no_reuse: Annotated[
        bool,
        option("--no-reuse", "Start new runs although equal runs have completed elsewhere", SCOPE),
    ] = False
    settings: Annotated[
        list[str] | None,
        option(
            "--set PATH=VALUE", "Value of a job, e.g. compute.accelerator=H200 (repeatable)", POLICY
        ),
    ] = None
    variables: Annotated[
        list[str] | None, option("--var NAME=VALUE", "Set a variable (repeatable)", POLICY)
    ] = None
    var_files: Annotated[
        list[Path] | None,
        option("--var-file FILE", "Load variables from YAML or TOML (repeatable)", POLICY),
    ] = None
    trust: Annotated[
        Path | None,
        option(
            "--trust FILE", "Trust file to use instead of ~/.config/trainctl/trust.toml", POLICY
        ),
    ] = None
    policy: Annotated[
        Path | None,
        option("--policy FILE", "More policies [default: TRAINCTL_POLICY; both apply]", POLICY),
    ] = None
    parallelism: Annotated[
        int, option("--parallelism N", "Maximum concurrent operations", POLICY)
    ] = 10
    runs: Sequence[str] = ()
    resume: bool = False
    by: str | None = None
    repeat: str | None = None
    delete_checkpoints: Annotated[
        bool, option("--delete-checkpoints", "Also delete checkpoints")
    ] = False

    def __post_init__(self) -> None:
        if self.parallelism < 1:
            raise UsageError(f"--parallelism {self.parallelism}: must be at least 1")

    @property
    def assignments(self) -> dict[str, str]:
        """``--var`` values; UsageError for one without ``=``. The last of a name wins."""
        return _pairs("--var NAME=VALUE", self.variables)

    @property
    def overrides(self) -> dict[str, str]:
        """``--set`` values by path; UsageError for one without ``=``."""
        return _pairs("--set PATH=VALUE", self.settings)


NO_FLAGS = PlanningFlags()


class OptionSelection:
    """Options of a command: fields of a class by name, in the order of its help page; ``texts`` replace theirs."""

    def __init__(self, names: str, group: type[Any] = PlanningFlags, **texts: Any) -> None:
        self.names = names.split()
        self.group = group
        self._texts = texts

    def parameters(self) -> list[CommandParameter]:
        """Return the options."""
        hints = get_type_hints(self.group, include_extras=True)
        defaults = {field.name: field.default for field in fields(self.group)}
        found = [parameter(name, hints[name], defaults) for name in self.names]
        return [item._replace(usage=self._texts.get(item.name, item.usage)) for item in found]


TrustFlags = Annotated[PlanningFlags, OptionSelection("trust")]


def _pairs(usage: str, values: Sequence[str] | None) -> dict[str, str]:
    pairs = [value.partition("=") for value in values or ()]
    for name, equals, _ in pairs:
        if not (name and equals):
            flag = usage.partition(" ")[0]
            raise UsageError(f"{flag} {name!r}: missing value", f"Use {usage}.")
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
        from trainctl.views.terminal.text import csv_text

        output.print(csv_text(*rows).removesuffix("\n"))
    else:
        output.prose(*lines)


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """Options of all commands, before or after the command's name."""

    chdir: Annotated[Path | None, option("-C, --chdir DIR", "Run as if started in DIR")] = None
    state: Annotated[
        str | None,
        option(
            "--state URL", "Location of the state [default: TRAINCTL_STATE, or as in the manifest]"
        ),
    ] = None
    env: Annotated[
        str | None, option("--env NAME", "Use a state next to that one, for example pr-12")
    ] = None
    log_level: Annotated[LogLevel, option("--log-level LEVEL", "error, warning, info or debug")] = (
        LogLevel.WARNING
    )
    no_color: Annotated[bool, option("--no-color", "Disable colored output")] = False
    install_completion: Annotated[
        bool, option("--install-completion", "Install completion for the current shell")
    ] = False
    version: Annotated[bool, option("--version", "Print the version")] = False
