"""``trainctl nodes``."""

from __future__ import annotations

import time
from typing import Annotated

from trainctl.cli import options
from trainctl.cli.options import TableFormat, argument, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, open_workspace, query_all, require_terminal
from trainctl.errors import UsageError
from trainctl.operations.nodes import (
    end_machines,
    find_orphans,
    forget,
    live_runs_on,
    quarantine,
    recorded_node,
    release,
    report_nodes,
    watch_nodes,
)
from trainctl.resources.clusters import OrphanedMachine
from trainctl.views.nodes import (
    COLUMNS,
    MACHINE_COLUMNS,
    ended_lines,
    machine_row,
    machines_lines,
    node_rows,
    nodes_json,
    nodes_lines,
)


def list_command(
    session: CliSession,
    orphans: Annotated[
        bool, option("--orphans", "Machines in the account that the state doesn't have")
    ] = False,
    watch: Annotated[bool, option("--watch", "Refresh every 2 seconds until Ctrl-C")] = False,
    every: options.AllStates = False,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """List nodes with their GPUs, disk space, cached weights, runs, cost and idle time."""
    if watch and (orphans or format_ is TableFormat.CSV):
        other = "--orphans" if orphans else "--format csv"
        raise UsageError(
            f"--watch can't be used with {other}", "Use --watch alone, or --format json."
        )
    if every and (watch or orphans):
        other = "--watch" if watch else "--orphans"
        raise UsageError(f"--all can't be used with {other}", "Use one of them.")
    if orphans:
        with open_workspace(session) as workspace:
            _print_machines(session, find_orphans(workspace), format_)
        return 0
    if watch:
        with open_workspace(session) as workspace:
            from trainctl.views.terminal.progress import show_updates

            show_updates(
                session.output,
                watch_nodes(workspace),
                lambda reports, width: nodes_lines(reports, width, now=time.time()),
                (lambda reports: [nodes_json(reports)]) if format_ is TableFormat.JSON else None,
            )
        return 0
    found, code = query_all(session, report_nodes, every=every)
    every_report = (report for reports in found.values() for report in reports)
    reports = list({(report.id, report.address): report for report in every_report}.values())
    lines = nodes_lines(reports, session.output.width, now=time.time())
    form = nodes_json(reports)
    print_result(session.output, format_, form, lines, (COLUMNS, node_rows(form)))
    return code


def quarantine_command(
    session: CliSession,
    node: Annotated[str, argument("CLUSTER/NODE", "Node, e.g. lab/gpu-03")],
    reason: Annotated[str, option("--reason REASON", "Reason, shown by trainctl nodes")],
) -> int:
    """Give a node no new runs until it is released; live runs on it continue."""
    with open_workspace(session) as workspace:
        found = quarantine(workspace, node, reason)
    session.output.print(
        f"{found.id} is quarantined. Release it: trainctl nodes release {found.id}."
    )
    return 0


def release_command(
    session: CliSession,
    node: Annotated[str, argument("CLUSTER/NODE", "Node, e.g. lab/gpu-03")],
) -> int:
    """Give a quarantined node new runs again."""
    with open_workspace(session) as workspace:
        found = release(workspace, node)
    session.output.print(f"{found.id} is released.")
    return 0


def forget_command(
    session: CliSession,
    node: Annotated[str, argument("CLUSTER/NODE", "Node, e.g. lab/gpu-03")],
    auto_approve: options.AutoApprove = False,
) -> int:
    """Remove a permanently lost node from the state, without touching it."""
    if not auto_approve:
        require_terminal(session)
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
        _, recorded = recorded_node(state, node)
        question = f"Remove {recorded.id} and its runs from the state?"
        if runs := live_runs_on(state, recorded):
            are = "is" if len(runs) == 1 else "are"
            question += f" {', '.join(runs)} {are} recorded as running there."
        if not auto_approve and not approve(session, question):
            session.output.note("Nothing was changed.")
            return 1
        forget(workspace, node)
    session.output.print(
        f"Removed {recorded.id} from the state. Files in {recorded.root} on the node are kept."
    )
    return 0


def reap_command(
    session: CliSession,
    lineages: Annotated[
        list[str] | None,
        option("--lineage ID", "End machines of a lost state instead (repeatable)"),
    ] = None,
    auto_approve: options.AutoApprove = False,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """End machines that this state's applies created and that the state doesn't have any more."""
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
    _print_machines(session, machines, format_, ended_lines(machines))
    return 1 if any(machine.error for machine in machines) else 0


def _print_machines(
    session: CliSession,
    machines: list[OrphanedMachine],
    format_: TableFormat,
    lines: list[str] | None = None,
) -> None:
    lines = lines or machines_lines(machines, time.time(), session.output.width)
    rows = [machine_row(machine) for machine in machines]
    print_result(session.output, format_, {"machines": rows}, lines, (MACHINE_COLUMNS, rows))
