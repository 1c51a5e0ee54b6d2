"""The table of commands, and a typer group that imports only the invoked one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command, get_group

from trainctl.base.lazy_dataclass import dataclass
from trainctl.cli.options import OptionSelection, global_options
from trainctl.cli.session import CliSession, session_of

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
        CommandRow("init", "manifest", "Create a manifest, or copy an example"),
        CommandRow("validate", "manifest", "Check the manifest for errors"),
        CommandRow("fmt", "manifest", "Format the manifest, with its comments"),
        CommandRow("plan", "plan", "Preview the changes apply would make"),
        CommandRow("apply", "apply", "Create, update or replace resources to match the manifest"),
        CommandRow("comment", "plan", "Write the plan as a comment of the pull request"),
        CommandRow("destroy", "apply", "Destroy all managed resources"),
        CommandGroup(
            "policy",
            "Check plans against policies",
            (CommandRow("test", "plan", "Check a saved plan against policies"),),
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
                CommandRow("list", "state", "List resources in the state"),
                CommandRow("show", "state", "Show a resource in the state"),
                CommandRow("pull", "state", "Print the state as JSON"),
                CommandRow("leases", "state", "List changes in progress or interrupted"),
                CommandRow("push", "state", "Replace the state by a pulled one"),
                CommandRow("mv", "state", "Rename a resource in the state"),
                CommandRow("rm", "state", "Remove resources from the state"),
                CommandRow("migrate", "state", "Move the complete state to another place"),
                CommandRow("rekey", "state", "Encrypt the state with the first key"),
            ),
        ),
        CommandRow("import", "imports", "Record an existing resource in the state"),
        CommandRow(
            "import truss",
            "imports",
            "Write a manifest from a config of truss train",
        ),
        CommandRow("history", "state", "Show the apply history"),
        CommandRow("usage", "state", "Show GPU hours and cost by project, label or user"),
        CommandRow("show", "plan", "Show a saved plan or the current state"),
        CommandRow("graph", "plan", "Print the graph of resources or changes"),
        CommandRow("force-unlock", "state", "Release a stuck lock"),
    ),
    "Other commands": (
        CommandRow("explain", "manifest", "Explain a manifest field or an error code"),
        CommandRow("schema", "manifest", "Print a JSON Schema"),
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

        def summaries(rows: Sequence[CommandRow | CommandGroup]) -> list[tuple[str, str]]:
            return [(row.name, row.help) for row in rows]

        if ctx.parent is None:
            sections = {title: summaries(rows) for title, rows in COMMAND_SECTIONS.items()}
            text = root_help(self, list(sections.items()), formatter.width)
        else:
            path, rows = ctx.command_path, summaries(self.rows)
            text = group_help(f"{self.help}.", path, rows, self.default, formatter.width)
        formatter.write(text)


class HelpPageCommand(TyperCommand):
    """A command with grouped options, exit codes and examples on its help page."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help page."""
        from trainctl.cli.help import command_help

        formatter.write(command_help(self, ctx.command_path, formatter.width))


def build() -> LazyGroup:
    """The whole program as one group."""
    return _group(COMMANDS, callback=global_options, invoke_without_command=True)


def _load(row: CommandRow | CommandGroup) -> ClickCommand:
    if isinstance(row, CommandGroup):
        group = _group(row.commands, name=row.name, help=row.help, callback=lambda: None)
        group.default = row.default
        return group
    app = _typer()
    module = import_module(f"trainctl.cli.commands.{row.module}")
    function = getattr(module, f"{re.sub('[- ]', '_', row.name)}_command")
    app.command(name=row.name, cls=HelpPageCommand)(_for_typer(function))
    command = get_command(app)
    replace_parameter_parsers(command)
    return command


def _group(rows: Sequence[CommandRow | CommandGroup], **settings: Any) -> LazyGroup:
    group = get_group(_typer(cls=LazyGroup, **settings))
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


def _for_typer(function: Callable[..., int]) -> Callable[..., int]:
    """Return a command for typer: it gets its session, and the flags of its groups are options of their own."""
    signature = inspect.signature(function, eval_str=True)
    shown = [inspect.Parameter("ctx", _POSITIONAL, annotation=typer.Context)]
    groups: dict[str, OptionSelection] = {}
    for name, parameter in signature.parameters.items():
        *_, selection = get_args(parameter.annotation) or (None,)
        if isinstance(selection, OptionSelection):
            groups[name] = selection
            shown += selection.parameters()
        elif parameter.annotation is not CliSession:
            shown.append(parameter)

    def command(ctx: typer.Context, **values: Any) -> int:
        for name, selection in groups.items():
            values[name] = selection.group(
                **{field: values.pop(field) for field in selection.names}
            )
        if "session" in signature.parameters:
            values["session"] = session_of(ctx)
        return function(**values)

    command.__doc__ = function.__doc__
    command.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return command


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_Parameter: TypeAlias = TyperArgument | TyperOption
_KINDS = {str: "text", int: "an integer", float: "a number", Path: "a path"}


def replace_parameter_parsers(command: ClickCommand) -> None:
    """Read the command's plain parameters here instead of with pydantic."""
    help_option = command.get_help_option(typer.Context(command, **command.context_settings))
    if help_option is not None:
        help_option.default = False  # None would go through pydantic to become None
    for parameter in command.params:
        if isinstance(parameter, _Parameter) and parameter.min is None:
            kind: Any = parameter.type_descriptor.annotation
            kind = get_args(kind)[0] if get_origin(kind) is list else kind
            if kind in _KINDS or (isinstance(kind, type) and issubclass(kind, StrEnum)):
                parameter.get_runtime_param = partial(_PlainParser, kind)  # type: ignore[method-assign, assignment]


@dataclass(frozen=True, slots=True)
class _PlainParser:
    """Makes words to values of a type, in place of typer's ``RuntimeParam``."""

    kind: Callable[[Any], Any]

    def coerce(self, value: Any, param: _Parameter, ctx: typer.Context) -> Any:
        """Return the value of a word, or the list of those of several."""
        several = param.multiple or param.nargs == -1
        words = (value or ()) if several else () if value is None else (value,)
        values = []
        for word in words:
            try:
                values.append(self.kind(word))
            except ValueError:
                wanted = _KINDS.get(self.kind) or "one of " + ", ".join(self.kind)  # type: ignore[call-overload, arg-type]
                text = f"{word!r} is not {wanted}"
                raise typer.BadParameter(text, ctx=ctx, param=param) from None
        return values if several else next(iter(values), None)
