"""``trainctl state``, ``history``, ``usage`` and ``force-unlock``."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from trainctl import __version__
from trainctl.base.filesystem.files import read_json
from trainctl.cli import options
from trainctl.cli.options import OutputFormat, TableFormat, argument, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import addresses, open_workspace, query_all
from trainctl.errors import ManifestError, StateError, UsageError
from trainctl.ledger import edits
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.edits import abort_migration, migrate, not_in_state_error
from trainctl.ledger.history import state_at
from trainctl.ledger.leases import open_leases
from trainctl.ledger.planned_edits import StateEdits
from trainctl.ledger.renaming import renames
from trainctl.ledger.usage import run_usage, usage_rows
from trainctl.model.address import Address
from trainctl.operations.records import copy_records
from trainctl.operations.states import rekey
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


def list_command(session: CliSession, format_: options.FormatOption = OutputFormat.TEXT) -> int:
    """List resources in the state."""
    with open_workspace(session) as workspace:
        names = [str(address) for address in sorted(workspace.ledger.state().resources)]
    print_result(session.output, format_, {"addresses": names}, names)
    return 0


def show_command(
    session: CliSession,
    address: Annotated[str, argument("ADDRESS", "Resource, e.g. job.train")],
    at: Annotated[int | None, option("--at SERIAL", "Show the resource at this serial")] = None,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Show a resource in the state."""
    parsed = addresses((address,), "ADDRESS")[0]
    with open_workspace(session) as workspace:
        state = workspace.ledger.state() if at is None else state_at(workspace.ledger.entries(), at)
    recorded = state.resources.get(parsed)
    if recorded is None:
        raise not_in_state_error(parsed)
    print_result(session.output, format_, resource_json(recorded), resource_lines(recorded))
    return 0


def pull_command(session: CliSession) -> int:
    """Print the state as JSON."""
    with open_workspace(session) as workspace:
        state = state_to_json(workspace.ledger.state())
        session.output.json({"trainctl_version": __version__, **state})
    return 0


def leases_command(
    session: CliSession, format_: options.TableFormatOption = TableFormat.TEXT
) -> int:
    """List changes that are in progress or were interrupted, with the IDs for force-unlock."""
    with open_workspace(session) as workspace:
        leases, now = open_leases(workspace.ledger.state()), workspace.ledger.clock.now()
    lines = lease_lines(leases, now, session.output.width)
    rows = lease_rows(leases, now)
    print_result(session.output, format_, {"leases": rows}, lines, (LEASE_COLUMNS, rows))
    return 0


def history_command(
    session: CliSession,
    address: Annotated[str | None, argument("ADDRESS", "Only changes of this resource")] = None,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the apply history: what was changed, when and by whom."""
    parsed = addresses((address,), "ADDRESS")[0] if address else None
    with open_workspace(session) as workspace:
        rows = workspace.ledger.history(parsed)
    lines = history_lines(rows, parsed, session.output.width)
    print_result(session.output, format_, history_json(rows), lines)
    return 0


def usage_command(
    session: CliSession,
    by: Annotated[UsageGrouping, option("--by KEY", "project, label or user")] = (
        UsageGrouping.PROJECT
    ),
    since: Annotated[
        str | None, option("--since TIME", "Date, or duration such as 30d [default: all runs]")
    ] = None,
    every: options.AllStates = False,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Show GPU hours and cost of runs, from the history of the state."""
    from trainctl.cli.commands.logs import parse_time

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
    session: CliSession,
    lease: Annotated[str, argument("ID", "Lock ID from the error message")],
) -> int:
    """Release a stuck lock. Make sure that its holder no longer runs."""
    with open_workspace(session) as workspace:
        released = workspace.ledger.release(lease)
    session.output.print(
        f"Released the lock on {released.address} (held by {released.holder.actor})."
    )
    return 0


def push_command(
    session: CliSession, file: Annotated[Path, argument("FILE", "Output of trainctl state pull")]
) -> int:
    """Replace the state by a pulled one, whose serial was increased by hand.

    Refuses a state of another lineage or an older one. An empty place takes over the lineage.
    """
    pushed = read_json(file) if file.is_file() else None
    if pushed is None:
        raise StateError(f"{file} is not a state", "Use the output of trainctl state pull.")
    with open_workspace(session) as workspace:
        state = edits.push(workspace.ledger, pushed)
    session.output.print(f"The state has serial {state.serial} and lineage {state.lineage}.")
    return 0


def mv_command(
    session: CliSession,
    source: Annotated[str, argument("SOURCE", "Recorded address, e.g. job.sft")],
    destination: Annotated[str, argument("DESTINATION", "New address, e.g. job.tune")],
    dry_run: options.DryRun = False,
) -> int:
    """Rename a resource in the state.

    The manifest needs the new name, too; with `moved` there, the plan shows the change.
    """
    old, new = addresses((source, destination), "SOURCE")
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
        declared: Collection[Address] = ()
        with suppress(ManifestError):
            declared = workspace.desired.resources
        names = renames(state, [(old, new)], declared)
        if not names:
            raise edits.not_in_state_error(old)
        if not dry_run:
            edits.edit(workspace.ledger, StateEdits(names))
    verb = "Would rename" if dry_run else "Renamed"
    session.output.print("\n".join(f"{verb} {old} to {new}." for old, new in names.items()))
    return 0


def rm_command(
    session: CliSession,
    address: Annotated[list[str], argument("ADDRESS", "Resources to remove")],
    dry_run: options.DryRun = False,
) -> int:
    """Remove resources from the state, without touching what they stand for."""
    parsed = addresses(address, "ADDRESS")
    with open_workspace(session) as workspace:
        edits.remove(workspace.ledger, parsed, dry_run=dry_run)
    verb = "Would remove" if dry_run else "Removed"
    session.output.print("\n".join(f"{verb} {item} from the state." for item in parsed))
    return 0


def migrate_command(
    session: CliSession,
    url: Annotated[str | None, argument("URL", "New place of the state, which is empty")] = None,
    abort: Annotated[bool, option("--abort", "Undo a move, to use the old place again")] = False,
) -> int:
    """Move the complete state to another place.

    The old place then refuses all commands with the URL of the new one. Repeat an interrupted move.
    """
    if (url is None) is not abort:
        raise UsageError("give either a URL or --abort", "For example: trainctl state migrate URL")
    with open_workspace(session) as workspace:
        old = workspace.ledger
        if url is None:
            left = abort_migration(old, workspace.ledger_at)
            session.output.print(f"The state is at {old.url} again. {left} can't be used any more.")
            return 0
        copy_records(workspace, old.url, url)
        entries = migrate(old, workspace.ledger_at(url))
    session.output.print(f"Moved the state ({entries} entries) from {old.url} to {url}.")
    session.output.note(f"Write in the manifest: state: {{url: {url}}}")
    return 0


def rekey_command(
    session: CliSession,
    accept_older: Annotated[
        bool, option("--accept-older", "Accept a state that is older than seen before")
    ] = False,
) -> int:
    """Encrypt the state with the first key of the manifest.

    Older entries of the history keep their key; state migrate encrypts all of them.
    """
    with open_workspace(session) as workspace:
        ledger = workspace.ledger
        key = rekey(ledger, accept_older=accept_older)
        copy_records(workspace, ledger.url, ledger.url)
    session.output.print(f"From now on, the state at {ledger.url} is encrypted with key {key}.")
    return 0
