"""Open workspaces for commands, and ask for confirmation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from trainctl.cli.options import NO_FLAGS, PlanningFlags, invalid_value
from trainctl.cli.session import CliSession
from trainctl.desired.values import JobOverrides
from trainctl.errors import NodeUnreachable, TrainctlError, UsageError
from trainctl.model.address import Address, Kind
from trainctl.operations.workspace import Workspace, WorkspaceSettings
from trainctl.views.terminal.text import escape, unreachable_text, warning_text

if TYPE_CHECKING:
    from trainctl.desired.values import DesiredState
    from trainctl.model.reports import UnreachableNode

T = TypeVar("T")
_UNTRUSTED_VARIABLES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""All that an untrusted plan sees of the environment."""


def open_workspace(
    session: CliSession, flags: PlanningFlags = NO_FLAGS, desired: DesiredState | None = None
) -> Workspace:
    """Open the workspace of a command; ``desired`` is that of a saved plan."""

    names = _UNTRUSTED_VARIABLES if flags.untrusted else os.environ
    settings = WorkspaceSettings(
        directory=session.directory,
        environ={name: os.environ[name] for name in names if name in os.environ},
        redactor=session.redactor,
        plan_json=lambda plan: import_module("trainctl.views.plan.json").plan_json(
            plan
        ),  # slow to import
        state_url=None if flags.untrusted else session.state_url,
        environment=session.environment,
        variables=flags.assignments,
        overrides=JobOverrides(
            flags.overrides,
            tuple(at.name for at in addresses(flags.targets, "--target") if at.kind is Kind.JOB),
        ),
        var_files=tuple(flags.var_files or ()),
        trust_file=flags.trust,
        policy_file=flags.policy,
        offline=flags.offline,
        untrusted=flags.untrusted,
    )
    return Workspace(
        settings,
        desired,
        session.output.note,
        lambda question: session.stdin.isatty() and approve(session, question),
    )


def open_with_trust(session: CliSession, flags: PlanningFlags) -> Workspace:
    """Open a workspace and read the trust file, if one is named."""
    workspace = open_workspace(session, flags)
    if flags.trust is not None:
        _ = workspace.trust
    return workspace


def query_all(
    session: CliSession, query: Callable[[Workspace], T], *, every: bool = True
) -> tuple[dict[str, T], int]:
    """Query one state, or ``every`` one; return results by URL, and the exit code.

    Prints a warning for each state that can't be read.
    """
    with open_workspace(session) as workspace:
        if not every:
            return {workspace.ledger.url: query(workspace)}, 0
        from trainctl.operations.states import query_states  # most commands query one state

        replies = query_states(workspace, query)
    results: dict[str, T] = {}
    for url, reply in replies.items():
        if isinstance(reply, TrainctlError):
            session.output.note(warning_text(f"{escape(url)}: {reply.summary}", code=reply.code))
        else:
            results[url] = reply
    return results, int(len(results) < len(replies))


def report_unreachable(
    session: CliSession, unreachable: Sequence[UnreachableNode], missing: str
) -> int:
    """Warn about unreachable nodes; return the exit code."""
    for node in unreachable:
        text = unreachable_text(node, missing)
        session.output.note(warning_text(text, code="node-unreachable"))
    return NodeUnreachable.exit_code if unreachable else 0


def addresses(values: Sequence[str] | None, flag: str) -> tuple[Address, ...]:
    """Parse addresses; UsageError names the flag."""
    try:
        return tuple(Address.read(value) for value in values or ())
    except ValueError as error:
        raise invalid_value(flag, error) from None


def require_terminal(session: CliSession, instead: str = "") -> None:
    """Raise UsageError if stdin is not a terminal; ``instead`` is a hint."""
    if not session.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation: standard input is not a terminal",
            f"Use --auto-approve{instead}.",
            code="no-terminal",
        )


def approve(session: CliSession, question: str) -> bool:
    """Ask for confirmation; only ``yes`` is accepted."""
    require_terminal(session)
    output = session.output
    output.note("", output.error_style(question, "bold"), "  Only 'yes' will be accepted.")
    output.ask("  Enter a value: ")
    answer = session.stdin.readline()
    if not answer.endswith("\n"):
        output.note("")
    return answer.strip() == "yes"
