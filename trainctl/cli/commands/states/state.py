"""``trainctl state``, ``history``, ``usage`` and ``force-unlock``."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from trainctl import __version__
from trainctl.cli.logs import parse_time
from trainctl.cli.options import (
    AllStates,
    FormatOption,
    OutputFormat,
    TableFormat,
    TableFormatOption,
    argument,
    option,
    print_result,
)
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import addresses, open_workspace, query_all
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.edits import not_in_state_error
from trainctl.ledger.history import state_at
from trainctl.ledger.leases import open_leases
from trainctl.ledger.usage import run_usage, usage_rows
from trainctl.views.state import (
    LEASE_COLUMNS,
    USAGE_COLUMNS,
    history_json,
    history_lines,
    lease_lines,
    lease_rows,
    resource_json,
    resource_lines,
    usage_json,
    usage_lines,
)


class UsageGrouping(StrEnum):
    """Keys by which runs are summed up."""

    PROJECT = "project"
    LABEL = "label"
    USER = "user"


def list_command(ctx: typer.Context, format_: FormatOption = OutputFormat.TEXT) -> int:
    """List resources in the state."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        names = [str(address) for address in sorted(workspace.ledger.state().resources)]
    print_result(session.output, format_, {"addresses": names}, names)
    return 0


def show_command(
    ctx: typer.Context,
    address: Annotated[str, argument("ADDRESS", "Resource, e.g. job.train")],
    at: Annotated[int | None, option("--at SERIAL", "Show the resource at this serial")] = None,
    format_: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show a resource in the state."""
    session = session_of(ctx)
    parsed = addresses((address,), "ADDRESS")[0]
    with open_workspace(session) as workspace:
        state = workspace.ledger.state() if at is None else state_at(workspace.ledger.entries(), at)
    recorded = state.resources.get(parsed)
    if recorded is None:
        raise not_in_state_error(parsed)
    print_result(session.output, format_, resource_json(recorded), resource_lines(recorded))
    return 0


def pull_command(ctx: typer.Context) -> int:
    """Print the state as JSON."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        state = state_to_json(workspace.ledger.state())
        session.output.json({"trainctl_version": __version__, **state})
    return 0


def leases_command(ctx: typer.Context, format_: TableFormatOption = TableFormat.TEXT) -> int:
    """List changes that are in progress or were interrupted, with the IDs for force-unlock."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        leases, now = open_leases(workspace.ledger.state()), workspace.ledger.clock.now()
    lines = lease_lines(leases, now, session.output.width)
    rows = lease_rows(leases, now)
    print_result(session.output, format_, {"leases": rows}, lines, (LEASE_COLUMNS, rows))
    return 0


def history_command(
    ctx: typer.Context,
    address: Annotated[str | None, argument("ADDRESS", "Only changes of this resource")] = None,
    format_: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the apply history: what was changed, when and by whom."""
    session = session_of(ctx)
    parsed = addresses((address,), "ADDRESS")[0] if address else None
    with open_workspace(session) as workspace:
        rows = workspace.ledger.history(parsed)
    lines = history_lines(rows, parsed, session.output.width)
    print_result(session.output, format_, history_json(rows), lines)
    return 0


def usage_command(
    ctx: typer.Context,
    by: Annotated[UsageGrouping, option("--by KEY", "project, label or user")] = (
        UsageGrouping.PROJECT
    ),
    since: Annotated[
        str | None, option("--since TIME", "Date, or duration such as 30d [default: all runs]")
    ] = None,
    every: AllStates = False,
    format_: TableFormatOption = TableFormat.TEXT,
) -> int:
    """Show GPU hours and cost of runs, from the history of the state."""
    session = session_of(ctx)
    now = time.time()
    when = parse_time("--since", since)
    start = None if when is None else now - when.seconds if when.ago else when.seconds
    states, code = query_all(session, lambda state: run_usage(state.ledger.entries()), every=every)
    runs = {run.id: run for usage in states.values() for run in usage}  # copied states share runs
    rows, total = (usage_rows(runs.values(), key, start or 0.0, now) for key in (by, "total"))
    form = usage_json(rows, total, by, start, now)
    lines = usage_lines(rows, total, by, session.output.width)
    print_result(session.output, format_, form, lines, (USAGE_COLUMNS, form["rows"]))
    return code


def force_unlock_command(
    ctx: typer.Context,
    lease: Annotated[str, argument("ID", "Lock ID from the error message")],
) -> int:
    """Release a stuck lock. Make sure that its holder no longer runs."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        released = workspace.ledger.release(lease)
    session.output.print(
        f"Released the lock on {released.address} (held by {released.holder.actor})."
    )
    return 0
