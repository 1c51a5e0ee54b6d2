"""The table of commands, and a command by its function, which is imported when it is invoked."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_args, get_type_hints

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.cli.options import (
    CommandParameter,
    GlobalOptions,
    OptionSelection,
    option,
    parameter,
)
from trainctl.cli.session import CliSession


class CommandRow(NamedTuple):
    """A row of the table; ``module``, of ``trainctl.cli.commands``, has a function ``NAME_command``."""

    name: str
    module: str
    help: str


class CommandGroup(NamedTuple):
    """Commands with a common first word; ``default`` is run if that word stands alone."""

    name: str
    help: str
    commands: tuple[CommandRow | CommandGroup, ...]
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
        CommandRow("results", "runs", "Compare what runs reported, for example losses"),
        CommandRow("ui", "ui", "Show jobs, runs, nodes and the plan in a browser"),
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

ROOT = CommandGroup(
    "trainctl",
    "Run training jobs on your own machines, planned and reviewed like infrastructure",
    COMMANDS,
)
"""The program."""
HELP = CommandParameter("help", option("-h, --help", "Show help"), bool, False, False, False)
GLOBAL = tuple(
    OptionSelection(
        "chdir state env log_level no_color install_completion version", GlobalOptions
    ).parameters()
)
"""Options of every command."""


class CliCommand(NamedTuple):
    """A command: the text of its help page, its parameters, and the function that runs it."""

    help: str
    parameters: tuple[CommandParameter, ...]
    run: Callable[[CliSession, dict[str, Any]], int]

    @property
    def arguments(self) -> list[CommandParameter]:
        """The parameters without a name, in their order."""
        return [item for item in self.parameters if not item.usage.names]

    @property
    def options(self) -> list[CommandParameter]:
        """The parameters with a name."""
        return [item for item in self.parameters if item.usage.names]


def named_commands(group: CommandGroup = ROOT) -> dict[str, CommandRow]:
    """Return every command by its complete name, such as ``state list``."""
    rows: dict[str, CommandRow] = {}
    for row in group.commands:
        if isinstance(row, CommandRow):
            rows[row.name] = row
        else:
            rows |= {f"{row.name} {name}": below for name, below in named_commands(row).items()}
    return rows


def load(row: CommandRow) -> CliCommand:
    """Import a command."""
    module = import_module(f"trainctl.cli.commands.{row.module}")
    return command_of(getattr(module, f"{re.sub('[- ]', '_', row.name)}_command"))


def command_of(function: Callable[..., int]) -> CliCommand:
    """Return the command of a function: its annotations say what it takes."""
    hints = get_type_hints(function, include_extras=True)
    names = [name for name in hints if name != "return"]
    own = function.__defaults__ or ()
    defaults = dict(zip(names[len(names) - len(own) :], own, strict=True))
    parameters: list[CommandParameter] = []
    groups: dict[str, OptionSelection] = {}
    for name in names:
        *_, usage = get_args(hints[name]) or (None,)
        if isinstance(usage, OptionSelection):
            groups[name] = usage
            parameters += usage.parameters()
        elif hints[name] is not CliSession:
            parameters.append(parameter(name, hints[name], defaults))

    def run(session: CliSession, values: dict[str, Any]) -> int:
        for name, group in groups.items():
            values[name] = group.group(**{field: values.pop(field) for field in group.names})
        if "session" in names:
            values["session"] = session
        return function(**values)

    return CliCommand(function.__doc__ or "", tuple(parameters), run)
