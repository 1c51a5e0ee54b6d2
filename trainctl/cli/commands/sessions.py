"""``trainctl ssh``, ``proxy`` and ``session extend``."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Annotated

from trainctl.cli import options
from trainctl.cli.options import argument, option
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import NodeUnreachable, UsageError
from trainctl.operations.runs import lookup
from trainctl.operations.runs.control import entry_command, extend_session, forward_port, ssh_config
from trainctl.views.terminal.text import second

RankOption = Annotated[int, option("--rank N", "Rank of the run")]


def ssh_command(
    session: CliSession,
    address: Annotated[str | None, argument("ADDRESS", "Job, e.g. job.train")] = None,
    command: Annotated[
        list[str] | None,
        argument(
            "COMMAND", "Command after --; one word is a line for the shell [default: a shell]"
        ),
    ] = None,
    run: options.RunOption = None,
    rank: RankOption = 0,
    with_secrets: Annotated[
        bool, option("--with-secrets", "Set the variables that hold secrets, too")
    ] = False,
    config: Annotated[
        bool, option("--config", "Print blocks for ~/.ssh/config instead, of all jobs or one")
    ] = False,
) -> int:
    """Open a shell in the environment of a run, or in the directory of an ended one."""
    if address is None and not config:
        raise UsageError("missing ADDRESS", "Use trainctl ssh ADDRESS, or trainctl ssh --config.")
    with open_workspace(session) as workspace:
        state = lookup.with_unrecorded_runs(workspace)
        if address is None or config:
            runs = (
                lookup.select_runs(state, lookup.job_address(address), run)
                if address
                else lookup.newest_runs(state)
            )
            for line in ssh_config(workspace, runs):
                session.output.print(line)
            return 0
        job_run = lookup.find_run(state, lookup.job_address(address), run)
        argv = entry_command(
            workspace,
            job_run,
            rank,
            command or [],
            with_secrets=with_secrets,
            tty=session.stdin.isatty() and sys.stdout.isatty(),
        )
        session.output.flush()
        code = subprocess.run(argv, check=False).returncode
    return code if code >= 0 else 128 - code


def proxy_command(
    session: CliSession,
    address: options.JobArgument,
    port: Annotated[str, argument("PORT", "Port of the run, or LOCAL:PORT for another one here")],
    run: options.RunOption = None,
    rank: RankOption = 0,
) -> int:
    """Forward a local port to a port of a run until Ctrl-C, e.g. for TensorBoard or Jupyter."""
    local, _, remote = port.rpartition(":")
    ports = [text for text in (local or remote, remote) if text.isdigit() and 0 < int(text) < 2**16]
    if len(ports) != 2:
        raise options.invalid_value("PORT", ValueError(f"{port!r} is not PORT or LOCAL:PORT"))
    here, there = map(int, ports)
    with open_workspace(session) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        with forward_port(workspace, job_run, rank, here, there) as works:
            try:
                session.output.print(
                    f"http://127.0.0.1:{here} is port {there} of {job_run.job.address}, run "
                    f"{job_run.record.number}. Press Ctrl-C to end."
                )
                session.output.flush()
                while works():
                    time.sleep(1)
            except KeyboardInterrupt:
                return 0
    raise NodeUnreachable(f"{job_run.job.address}: connection lost", "Run the command again.")


def extend_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    minutes: Annotated[int, option("--minutes N", "Minutes to add")] = 60,
) -> int:
    """Let a run keep its GPUs, mounts and files for longer after its commands have ended."""
    with open_workspace(session) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        until = extend_session(workspace, job_run, minutes)
    when = f"until {second(until)} UTC" if until else "after its commands have ended"
    session.output.print(
        f"{job_run.job.address}: run {job_run.record.number} keeps its place {when}"
    )
    return 0
