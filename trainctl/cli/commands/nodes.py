"""``trainctl nodes``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainctl.cli.options import (
    AutoApprove,
    TableFormat,
    TableFormatOption,
    argument,
    option,
    print_result,
)
from trainctl.cli.session import CliSession, session_of
from trainctl.cli.workspaces import approve, open_workspace, require_terminal
from trainctl.operations.machines import end_machines, find_orphans
from trainctl.operations.nodes import forget, inspect_nodes, live_runs_on, recorded_node
from trainctl.resources.orphans import OrphanedMachine
from trainctl.views.machines import COLUMNS as MACHINE_COLUMNS
from trainctl.views.machines import machine_row, machines_json, machines_lines
from trainctl.views.nodes import COLUMNS, node_rows, nodes_json, nodes_lines


def list_command(
    ctx: typer.Context,
    orphans: Annotated[
        bool, option("--orphans", "Machines in the account that the state doesn't have")
    ] = False,
    format_: TableFormatOption = TableFormat.TEXT,
) -> int:
    """List nodes with free GPUs, disk space, cached weights and live runs."""
    session = session_of(ctx)
    if orphans:
        with open_workspace(session) as workspace:
            _print_machines(session, find_orphans(workspace), format_)
        return 0
    with open_workspace(session) as workspace:
        reports = inspect_nodes(workspace)
    lines = nodes_lines(reports, session.output.width)
    print_result(session.output, format_, nodes_json(reports), lines, (COLUMNS, node_rows(reports)))
    return 0


def forget_command(
    ctx: typer.Context,
    node: Annotated[str, argument("CLUSTER/NODE", "Node, e.g. lab/gpu-03")],
    auto_approve: AutoApprove = False,
) -> int:
    """Remove a permanently lost node from the state, without touching it."""
    session = session_of(ctx)
    if not auto_approve:
        require_terminal(session)
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
        _, recorded = recorded_node(state, node)
        if not auto_approve and not approve(
            session, _question(recorded.id, live_runs_on(state, recorded))
        ):
            session.output.note("Nothing was changed.")
            return 1
        forget(workspace, node)
    session.output.print(
        f"Removed {recorded.id} from the state. Files in {recorded.root} on the node are kept."
    )
    return 0


def reap_command(
    ctx: typer.Context,
    lineages: Annotated[
        list[str] | None,
        option("--lineage ID", "End machines of a lost state instead (repeatable)"),
    ] = None,
    auto_approve: AutoApprove = False,
    format_: TableFormatOption = TableFormat.TEXT,
) -> int:
    """End machines that this state's applies created and that the state doesn't have any more."""
    session = session_of(ctx)
    if not auto_approve:
        require_terminal(session)
    with open_workspace(session) as workspace:
        machines = find_orphans(workspace, lineages or [""])
        if machines and not auto_approve:
            lines = machines_lines(machines, time.time(), session.output.width)
            session.output.note(*lines)
            if not approve(session, "End these machines, with everything on them?"):
                session.output.note("Nothing was changed.")
                return 1
        machines = end_machines(workspace, machines)
    _print_machines(session, machines, format_)
    failed = [machine for machine in machines if machine.error]
    for orphan in failed:
        session.output.note(f"{orphan.machine.id}: {orphan.error}")
    return 1 if failed else 0


def _print_machines(
    session: CliSession, machines: list[OrphanedMachine], format_: TableFormat
) -> None:
    lines = machines_lines(machines, time.time(), session.output.width)
    rows = (MACHINE_COLUMNS, [machine_row(machine) for machine in machines])
    print_result(session.output, format_, machines_json(machines), lines, rows)


def _question(node: str, runs: tuple[str, ...]) -> str:
    live = (
        f" {', '.join(runs)} {'is' if len(runs) == 1 else 'are'} recorded as running there."
        if runs
        else ""
    )
    return f"Remove {node} and its runs from the state?{live}"
