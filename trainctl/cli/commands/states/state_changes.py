"""``trainctl state push``, ``mv``, ``rm``, ``migrate`` and ``rekey``: changes of the state alone."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trainctl.base.filesystem.files import read_json
from trainctl.cli.options import DryRun, argument, option
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.errors import ManifestError, StateError, UsageError
from trainctl.ledger import edits
from trainctl.ledger.migration import abort_migration, migrate
from trainctl.ledger.planned_edits import StateEdits
from trainctl.ledger.renaming import renames
from trainctl.model.address import Address
from trainctl.operations.states.opening import rekey


def push_command(
    ctx: typer.Context, file: Annotated[Path, argument("FILE", "Output of trainctl state pull")]
) -> int:
    """Replace the state by a pulled one, whose serial was increased by hand.

    Refuses a state of another lineage or an older one. An empty place takes over the lineage.
    """
    session = session_of(ctx)
    pushed = read_json(file) if file.is_file() else None
    if pushed is None:
        raise StateError(f"{file} is not a state", "Use the output of trainctl state pull.")
    with open_workspace(session) as workspace:
        state = edits.push(workspace.ledger, pushed)
    session.output.print(f"The state has serial {state.serial} and lineage {state.lineage}.")
    return 0


def mv_command(
    ctx: typer.Context,
    source: Annotated[str, argument("SOURCE", "Recorded address, e.g. job.sft")],
    destination: Annotated[str, argument("DESTINATION", "New address, e.g. job.tune")],
    dry_run: DryRun = False,
) -> int:
    """Rename a resource in the state.

    The manifest needs the new name, too; with `moved` there, the plan shows the change.
    """
    session = session_of(ctx)
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
    ctx: typer.Context,
    address: Annotated[list[str], argument("ADDRESS...", "Resources to remove")],
    dry_run: DryRun = False,
) -> int:
    """Remove resources from the state, without touching what they stand for."""
    session = session_of(ctx)
    parsed = addresses(address, "ADDRESS")
    with open_workspace(session) as workspace:
        edits.remove(workspace.ledger, parsed, dry_run=dry_run)
    verb = "Would remove" if dry_run else "Removed"
    session.output.print("\n".join(f"{verb} {item} from the state." for item in parsed))
    return 0


def migrate_command(
    ctx: typer.Context,
    url: Annotated[str | None, argument("URL", "New place of the state, which is empty")] = None,
    abort: Annotated[bool, option("--abort", "Undo a move, to use the old place again")] = False,
) -> int:
    """Move the complete state to another place.

    The old place then refuses all commands with the URL of the new one. Repeat an interrupted move.
    """
    session = session_of(ctx)
    if (url is None) is not abort:
        raise UsageError("give either a URL or --abort", "For example: trainctl state migrate URL")
    with open_workspace(session) as workspace:
        old = workspace.ledger
        if url is None:
            left = abort_migration(old, workspace.ledger_at)
            session.output.print(f"The state is at {old.url} again. {left} can't be used any more.")
            return 0
        entries = migrate(old, workspace.ledger_at(url))
    session.output.print(f"Moved the state ({entries} entries) from {old.url} to {url}.")
    session.output.note(f"Write in the manifest: state: {{url: {url}}}")
    return 0


def rekey_command(
    ctx: typer.Context,
    accept_older: Annotated[
        bool, option("--accept-older", "Accept a state that is older than seen before")
    ] = False,
) -> int:
    """Encrypt the state with the first key of the manifest.

    Older entries of the history keep their key; state migrate encrypts all of them.
    """
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        ledger = workspace.ledger
        key = rekey(ledger, accept_older=accept_older)
    session.output.print(f"From now on, the state at {ledger.url} is encrypted with key {key}.")
    return 0
