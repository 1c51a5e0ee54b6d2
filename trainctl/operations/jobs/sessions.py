"""Enter runs, and forward ports to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from trainctl.operations.jobs.runs import JobRun, check_rank, run_control, unknown_run_error
from trainctl.operations.workspace import Workspace


def entry_command(
    workspace: Workspace,
    run: JobRun,
    rank: int,
    command: Sequence[str],
    *,
    with_secrets: bool,
    tty: bool,
) -> Sequence[str]:
    """Return a local command line that enters a rank's environment; see ``base.protocol.runs.EnterRequest``.

    NodeUnreachable without a connection. Valid until the workspace is closed.
    """
    _check(workspace, run, rank)
    return run_control(workspace).entry_command(
        run.record, rank, command, with_secrets=with_secrets, tty=tty
    )


def forward_port(
    workspace: Workspace, run: JobRun, rank: int, local_port: int, port: int
) -> AbstractContextManager[Callable[[], bool]]:
    """Forward a local port to a rank's node; yields whether it still works."""
    _check(workspace, run, rank)
    agent, _ = run_control(workspace).interactive_agent(run.record, rank)
    return agent.interactive().forward(local_port, port)


def _check(workspace: Workspace, run: JobRun, rank: int) -> None:
    if not run.record.ranks:
        raise unknown_run_error(workspace.ledger.known(), run.job.address, run.record)
    check_rank(run, rank)


def extend_session(workspace: Workspace, run: JobRun, minutes: float) -> float | None:
    """Let a live run keep its place for longer; its end in Unix seconds, None while its commands run."""
    _check(workspace, run, 0)
    return run_control(workspace).extend_session(run.record, minutes * 60)
