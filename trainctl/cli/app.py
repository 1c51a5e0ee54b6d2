"""The table of commands, and a typer group that imports only the invoked one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command, get_group

from trainctl.cli.options import global_options

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A row of the table; ``module``, of ``trainctl.cli.commands``, has a function ``NAME_command``."""

    name: str
    module: str
    help: str


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands with a common first word; ``default`` is run if that word stands alone."""

    name: str
    help: str
    commands: tuple[CommandRow, ...]
    default: str | None = None


COMMAND_SECTIONS: dict[str, tuple[CommandRow | CommandGroup, ...]] = {
    "Core commands": (
        CommandRow("init", "manifests.init", "Create a manifest, or copy an example"),
        CommandRow("validate", "manifests.manifest", "Check the manifest for errors"),
        CommandRow("fmt", "manifests.fmt", "Format the manifest, with its comments"),
        CommandRow("plan", "plan", "Preview the changes apply would make"),
        CommandRow("apply", "apply", "Create, update or replace resources to match the manifest"),
        CommandRow("comment", "plan", "Write the plan as a comment of the pull request"),
        CommandRow("destroy", "apply", "Destroy all managed resources"),
        CommandGroup(
            "policy",
            "Check plans against policies",
            (CommandRow("test", "policy", "Check a saved plan against policies"),),
        ),
        CommandRow("reconcile", "apply", "Resume approved work that was blocked or interrupted"),
    ),
    "Job commands": (
        CommandRow("status", "runs", "Show the status of jobs and runs"),
        CommandRow("logs", "logs", "Print the logs of a job"),
        CommandRow("metrics", "logs", "Show GPU, CPU, memory and disk usage of a run"),
        CommandRow("run", "apply", "Start a new run of one or more jobs"),
        CommandRow("stop", "runs", "Stop one or more runs"),
        CommandRow("ssh", "sessions", "Open a shell in the environment of a run"),
        CommandGroup(
            "session",
            "Extend interactive sessions",
            (CommandRow("extend", "sessions", "Let a run keep its place for longer"),),
        ),
        CommandRow("proxy", "sessions", "Forward a local port to a port of a run"),
        CommandGroup(
            "checkpoints",
            "List, download, upload and serve checkpoints",
            (
                CommandRow("list", "checkpoints", "List the checkpoints of a job"),
                CommandRow("download", "checkpoints", "Download a checkpoint"),
                CommandRow("url", "checkpoints", "Print presigned URLs of a checkpoint's files"),
                CommandRow("upload", "checkpoints", "Upload checkpoints a run left on its node"),
                CommandRow("deploy", "checkpoints", "Write a directory that serves a checkpoint"),
            ),
        ),
        CommandRow("download", "runs", "Download the source code used by a run"),
    ),
    "Data commands": (
        CommandGroup(
            "mirror",
            "Manage the mirror of weights and datasets",
            (
                CommandRow("list", "mirror", "List mirrored sources with size, revision and users"),
                CommandRow("verify", "mirror", "Verify all blobs against their digests"),
                CommandRow("gc", "mirror", "Delete unreferenced blobs"),
            ),
        ),
        CommandGroup(
            "cache",
            "Manage weight caches and training caches on nodes",
            (
                CommandRow("summarize", "cache", "Show the contents of a training cache"),
                CommandRow("clear", "cache", "Delete files from a training cache"),
                CommandRow("verify", "cache", "Verify cached weights against their digests"),
                CommandRow("evict", "cache", "Remove weights from node caches"),
            ),
        ),
        CommandGroup(
            "secrets",
            "Check and store secrets",
            (
                CommandRow(
                    "check", "secrets", "Show sources, recipients and permissions of secrets"
                ),
                CommandRow("push", "secrets", "Store a secret, or send secrets to waiting runs"),
            ),
        ),
    ),
    "Cluster and state commands": (
        CommandGroup(
            "nodes",
            "List, quarantine and remove nodes and machines",
            (
                CommandRow("list", "nodes", "List nodes with GPUs, cached weights, runs and cost"),
                CommandRow("quarantine", "nodes", "Give a node no new runs until it is released"),
                CommandRow("release", "nodes", "Release a quarantined node"),
                CommandRow("forget", "nodes", "Remove a permanently lost node from the state"),
                CommandRow("reap", "nodes", "End machines that the state doesn't have"),
            ),
            default="list",
        ),
        CommandGroup(
            "state",
            "Inspect, change and move the state",
            (
                CommandRow("list", "states.state", "List resources in the state"),
                CommandRow("show", "states.state", "Show a resource in the state"),
                CommandRow("pull", "states.state", "Print the state as JSON"),
                CommandRow("leases", "states.state", "List changes in progress or interrupted"),
                CommandRow("push", "states.state_changes", "Replace the state by a pulled one"),
                CommandRow("mv", "states.state_changes", "Rename a resource in the state"),
                CommandRow("rm", "states.state_changes", "Remove resources from the state"),
                CommandRow(
                    "migrate", "states.state_changes", "Move the complete state to another place"
                ),
                CommandRow("rekey", "states.state_changes", "Encrypt the state with the first key"),
            ),
        ),
        CommandRow("import", "states.imports", "Record an existing resource in the state"),
        CommandRow(
            "import truss",
            "manifests.import_truss",
            "Write a manifest from a config of truss train",
        ),
        CommandRow("history", "states.state", "Show the apply history"),
        CommandRow("usage", "states.state", "Show GPU hours and cost by project, label or user"),
        CommandRow("show", "plan", "Show a saved plan or the current state"),
        CommandRow("graph", "plan", "Print the graph of resources or changes"),
        CommandRow("force-unlock", "states.state", "Release a stuck lock"),
    ),
    "Other commands": (
        CommandRow("explain", "manifests.manifest", "Explain a manifest field or an error code"),
        CommandRow("schema", "manifests.manifest", "Print a JSON Schema"),
        CommandRow("providers", "version", "List installed providers"),
        CommandRow("version", "version", "Print the version"),
    ),
}
"""Every command by the sections of the program's help page."""
COMMANDS = tuple(row for rows in COMMAND_SECTIONS.values() for row in rows)

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """A group whose commands are rows of a table until one is asked for."""

    rows: Sequence[CommandRow | CommandGroup] = ()
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

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from the table, without importing them, and options."""
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return TyperCommand.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(row.name, help=row.help)
            for row in self.rows
            if row.name.startswith(incomplete) and " " not in row.name
        ]

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help page from the table, without importing any command."""
        from trainctl.cli.help import group_help, root_help

        if ctx.parent is None:
            sections = [(title, _summaries(rows)) for title, rows in COMMAND_SECTIONS.items()]
            text = root_help(self, sections, formatter.width)
        else:
            rows = _summaries(self.rows)
            text = group_help(
                f"{self.help}.", ctx.command_path, rows, self.default, formatter.width
            )
        formatter.write(text)


class HelpPageCommand(TyperCommand):
    """A command with grouped options, exit codes and examples on its help page."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help page."""
        from trainctl.cli.help import command_help

        formatter.write(command_help(self, ctx.command_path, formatter.width))


def _summaries(rows: Sequence[CommandRow | CommandGroup]) -> list[tuple[str, str]]:
    return [(row.name, row.help) for row in rows]


def build() -> LazyGroup:
    """The whole program as one group."""
    app = _typer(cls=LazyGroup, callback=global_options, invoke_without_command=True)
    return _group(app, COMMANDS)


def _load(row: CommandRow | CommandGroup) -> ClickCommand:
    if isinstance(row, CommandGroup):
        app = _typer(cls=LazyGroup, name=row.name, help=row.help, callback=lambda: None)
        group = _group(app, row.commands)
        group.default = row.default
        return group
    app = _typer()
    module = import_module(f"trainctl.cli.commands.{row.module}")
    function = getattr(module, f"{re.sub('[- ]', '_', row.name)}_command")
    app.command(name=row.name, cls=HelpPageCommand)(function)
    command = get_command(app)
    replace_parameter_parsers(command)
    return command


def _group(app: typer.Typer, rows: Sequence[CommandRow | CommandGroup]) -> LazyGroup:
    group = get_group(app)
    assert isinstance(group, LazyGroup)  # noqa: S101 (made with cls=LazyGroup)
    group.rows = rows
    replace_parameter_parsers(group)
    return group


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=dict(_SETTINGS),
        **settings,
    )


_Parameter: TypeAlias = TyperArgument | TyperOption
_KINDS = {str: "text", int: "an integer", float: "a number", Path: "a path"}


def replace_parameter_parsers(command: ClickCommand) -> None:
    """Read the command's plain parameters here instead of with pydantic."""
    help_option = command.get_help_option(typer.Context(command, **command.context_settings))
    if help_option is not None:
        help_option.default = False  # None would go through pydantic to become None
    for parameter in command.params:
        if not isinstance(parameter, _Parameter) or parameter.min is not None:
            continue
        make = _value_parser(parameter)
        if make is not None:
            parameter.process_value = partial(_parse_values, parameter, make)  # type: ignore[method-assign]


def _value_parser(parameter: _Parameter) -> Callable[[Any], Any] | None:
    annotation: Any = parameter.type_descriptor.annotation
    value_type = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    plain = value_type in _KINDS or (
        isinstance(value_type, type) and issubclass(value_type, StrEnum)
    )
    return value_type if plain else None


def _parse_values(
    parameter: _Parameter, make: Callable[[Any], Any], ctx: typer.Context, value: Any
) -> Any:
    if value is None or value == () or value == []:
        if parameter.required:
            return type(parameter).process_value(parameter, ctx, None)
        return [] if _takes_many(parameter) else None
    if _takes_many(parameter):
        return [_parse_word(parameter, make, ctx, word) for word in value]
    return _parse_word(parameter, make, ctx, value)


def _takes_many(parameter: _Parameter) -> bool:
    return parameter.multiple or parameter.nargs == -1


def _parse_word(parameter: _Parameter, make: Any, ctx: typer.Context, word: Any) -> Any:
    try:
        return make(word)
    except ValueError:
        wanted = _KINDS.get(make) or "one of " + ", ".join(make)
        raise typer.BadParameter(f"{word!r} is not {wanted}", ctx=ctx, param=parameter) from None
