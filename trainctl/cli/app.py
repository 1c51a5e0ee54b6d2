"""The table of commands, and a typer group that imports only the one that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from typer.core import TyperGroup
from typer.main import get_command, get_group

from trainctl.cli.options import global_options

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table: ``module`` is one of ``trainctl.cli.commands``.

    It holds a function ``command``, or ``NAME_command`` for each command of a group.
    """

    name: str
    module: str
    help: str


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under a common first word; ``default`` is the one that it means alone."""

    name: str
    help: str
    commands: tuple[Command, ...]
    default: str | None = None


COMMANDS: tuple[Command | Group, ...] = (
    Command("validate", "validate", "Check the manifest; reads no state and no network."),
    Command("plan", "plan", "Show what apply would do."),
    Command("apply", "apply", "Make the world what the manifest says."),
    Command("destroy", "destroy", "Take down everything that is recorded."),
    Command("run", "run", "Run jobs once more, with today's code."),
    Command("watch", "watch", "Carry on what was approved and needs somebody's reach."),
    Command("show", "show", "Show a saved plan, or the state."),
    Command("status", "status", "Show jobs and their runs."),
    Command("logs", "logs", "Show what a job said."),
    Command("metrics", "metrics", "Show what a run uses: GPUs, CPU, memory, disk."),
    Command("stop", "stop", "Stop a job's run."),
    Command("download", "download", "Copy the code that a run ran to this machine."),
    Group(
        "checkpoints",
        "Checkpoints of jobs.",
        (
            Command("list", "checkpoints", "List a job's checkpoints."),
            Command("download", "checkpoints", "Copy a checkpoint to this machine."),
            Command("url", "checkpoints", "Show where a checkpoint's files can be had."),
            Command("upload", "checkpoints", "Bring what an ended run left to the store."),
        ),
    ),
    Group(
        "nodes",
        "The machines of clusters.",
        (
            Command("list", "nodes", "List them: what is free, cached and running there."),
            Command("forget", "nodes", "Drop one that will never come back."),
        ),
        default="list",
    ),
    Group(
        "mirror",
        "The mirror of weights.",
        (
            Command("list", "mirror_list", "List its sources."),
            Command("verify", "mirror_verify", "Hash everything in it again."),
            Command("gc", "mirror_gc", "Delete what nobody refers to."),
        ),
    ),
    Group(
        "cache",
        "Caches on nodes: of weights, and of training.",
        (
            Command("summarize", "cache", "Show what a project's training cache holds."),
            Command("clear", "cache", "Remove files from a project's training cache."),
            Command("verify", "cache", "Hash the weights in nodes' caches again."),
            Command("evict", "cache", "Evict weights from nodes' caches."),
        ),
    ),
    Group(
        "secrets",
        "The manifest's secrets.",
        (
            Command("check", "secrets", "Show where they come from and who gets them."),
            Command("push", "secrets", "Store one where the manifest says it is kept."),
        ),
    ),
    Group(
        "state",
        "What is recorded.",
        (
            Command("list", "state", "List recorded addresses."),
            Command("show", "state", "Show one recorded resource."),
            Command("pull", "state", "Print the whole state as JSON."),
        ),
    ),
    Command("history", "history", "Show what was done, when and by whom."),
    Command("force-unlock", "force_unlock", "End a lease that its holder can't end."),
    Command("explain", "explain", "Say what a field or the code of an error means."),
    Command("providers", "providers", "List the installed providers."),
    Command("schema", "schema", "Print the JSON Schema of a document."),
    Command("version", "version", "Show the version of trainctl."),
)
"""Every command, in the order in which help lists them."""

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """A group whose commands are rows of a table until one is asked for."""

    rows: Sequence[Command | Group] = ()
    default: str | None = None

    def list_commands(self, ctx: Context) -> list[str]:
        """The names, in the table's order."""
        return [row.name for row in self.rows]

    def get_command(self, ctx: Context | None, cmd_name: str) -> ClickCommand | None:
        """Import the command of that name; None if there is none."""
        if cmd_name not in self.commands:
            row = next((row for row in self.rows if row.name == cmd_name), None)
            if row is None:
                return None
            self.commands[cmd_name] = _load(row)
        return self.commands[cmd_name]

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the table; imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, row.help) for row in self.rows])


def build() -> LazyGroup:
    """The whole program as one group."""
    app = _typer(cls=LazyGroup, callback=global_options, invoke_without_command=True)
    return _group(app, COMMANDS)


def _load(row: Command | Group) -> ClickCommand:
    if isinstance(row, Group):
        app = _typer(cls=LazyGroup, name=row.name, help=row.help, callback=_nothing)
        group = _group(app, row.commands)
        group.default = row.default
        return group
    app = _typer()
    module = import_module(f"trainctl.cli.commands.{row.module}")
    function = getattr(module, f"{row.name}_command", None) or module.command
    app.command(name=row.name)(function)
    command = get_command(app)
    lighten(command)
    return command


def _group(app: typer.Typer, rows: Sequence[Command | Group]) -> LazyGroup:
    group = get_group(app)
    assert isinstance(group, LazyGroup)  # noqa: S101 (made with cls=LazyGroup)
    group.rows = rows
    lighten(group)
    return group


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=dict(_SETTINGS),
        **settings,
    )


def _nothing() -> None: ...


_Parameter: TypeAlias = TyperArgument | TyperOption
_KINDS = {str: "text", int: "a whole number", float: "a number", Path: "a path"}


def lighten(command: ClickCommand) -> None:
    """Read the command's plain parameters here instead of with pydantic."""
    help_option = command.get_help_option(typer.Context(command, **command.context_settings))
    if help_option is not None:
        help_option.default = False  # None would go through pydantic to become None
    for parameter in command.params:
        if not isinstance(parameter, _Parameter) or parameter.min is not None:
            continue
        make = _maker(parameter)
        if make is not None:
            parameter.process_value = partial(_process, parameter, make)  # type: ignore[method-assign]


def _maker(parameter: _Parameter) -> Callable[[Any], Any] | None:
    annotation: Any = parameter.type_descriptor.annotation
    made = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    plain = made in _KINDS or (isinstance(made, type) and issubclass(made, StrEnum))
    return made if plain else None


def _process(
    parameter: _Parameter, make: Callable[[Any], Any], ctx: typer.Context, value: Any
) -> Any:
    if value is None or value == () or value == []:
        if parameter.required:
            return type(parameter).process_value(parameter, ctx, None)
        return [] if _many(parameter) else None
    if _many(parameter):
        return [_one(parameter, make, ctx, word) for word in value]
    return _one(parameter, make, ctx, value)


def _many(parameter: _Parameter) -> bool:
    return parameter.multiple or parameter.nargs == -1


def _one(parameter: _Parameter, make: Any, ctx: typer.Context, word: Any) -> Any:
    try:
        return make(word)
    except ValueError:
        wanted = _KINDS.get(make) or "one of " + ", ".join(make)
        raise typer.BadParameter(f"{word!r} is not {wanted}", ctx=ctx, param=parameter) from None
