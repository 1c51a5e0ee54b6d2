"""``trainctl nodes``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import AutoApprove, TableFormat, TableFormatOption, argument, print_result
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import approve, open_workspace, require_terminal
from trainctl.operations.nodes import forget, inspect_nodes, live_runs_on, recorded_node
from trainctl.views.nodes import COLUMNS, node_rows, nodes_json, nodes_lines


def list_command(ctx: typer.Context, format_: TableFormatOption = TableFormat.TEXT) -> int:
    """List nodes with free GPUs, disk space, cached weights and live runs."""
    session = session_of(ctx)
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


def _question(node: str, runs: tuple[str, ...]) -> str:
    live = (
        f" {', '.join(runs)} {'is' if len(runs) == 1 else 'are'} recorded as running there."
        if runs
        else ""
    )
    return f"Remove {node} and its runs from the state?{live}"
