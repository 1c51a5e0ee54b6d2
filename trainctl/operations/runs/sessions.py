"""Enter runs, forward ports to them, and extend their sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from trainctl.base.protocol.runs import EnterRequest
from trainctl.errors import NodeError
from trainctl.inputs.environment import work_directory
from trainctl.operations.runs.lookup import JobRun, check_rank, run_control, unknown_run_error
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent


def entry_command(
    workspace: Workspace,
    run: JobRun,
    rank: int,
    command: Sequence[str],
    *,
    with_secrets: bool,
    tty: bool,
) -> Sequence[str]:
    """Return a local command line that enters a rank's environment; see ``EnterRequest``.

    NodeUnreachable without a connection. Valid until the workspace is closed.
    """
    agent, node = _agent(workspace, run, rank)
    request = EnterRequest(
        root=node.root, key=run.record.key, command=[*command], with_secrets=with_secrets
    )
    return agent.terminal_command(request, tty=tty)


def forward_port(
    workspace: Workspace, run: JobRun, rank: int, local_port: int, port: int
) -> AbstractContextManager[Callable[[], bool]]:
    """Forward a local port to a rank's node; yields whether it still works."""
    return _agent(workspace, run, rank)[0].interactive().forward(local_port, port)


def extend_session(workspace: Workspace, run: JobRun, minutes: float) -> float | None:
    """Let a live run keep its place for longer; its end in Unix seconds, None while its commands run."""
    return run_control(workspace).extend_session(run.record, minutes * 60)


def ssh_config(workspace: Workspace, runs: Iterable[JobRun]) -> Iterator[str]:
    """Yield a block of ``~/.ssh/config`` for each rank on a host that ssh reaches; see ssh_config(5)."""
    for run in runs:
        for record in run.record.ranks:
            try:
                agent, node = _agent(workspace, run, record.rank)
                options = agent.interactive().ssh_options
            except NodeError:
                continue  # no ssh host, or not in the state any more
            if options:
                name = re.sub(r"[^A-Za-z0-9._]+", "-", str(run.job.address)[len("job.") :]).strip(
                    "-"
                )
                rank = f"-{record.rank}" if len(run.record.ranks) > 1 else ""
                yield f"# {run.job.address}, run {run.record.number}: {work_directory(node, run.record)}"
                yield f"Host trainctl-{name}{rank}"
                yield from (f"    {option} {value}" for option, value in options.items())


def _agent(workspace: Workspace, run: JobRun, rank: int) -> tuple[NodeAgent, Node]:
    if not run.record.ranks:
        raise unknown_run_error(workspace.ledger.known(), run.job.address, run.record)
    check_rank(run, rank)
    return run_control(workspace).interactive_agent(run.record, rank)
