"""``trainctl mirror``."""

from __future__ import annotations

from typing import Annotated

from trainctl.cli import options
from trainctl.cli.options import NO_FLAGS, TableFormat, duration, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_with_trust
from trainctl.errors import UsageError
from trainctl.model.delivery import MirrorSite
from trainctl.operations.survey.weights import DAMAGED_REFERENCE
from trainctl.operations.workspace import Workspace
from trainctl.store.gc import GcOptions
from trainctl.views.mirror import (
    FINDING_COLUMNS,
    GC_COLUMNS,
    MIRROR_COLUMNS,
    gc_json,
    gc_lines,
    gc_rows,
    lost_listing_lines,
    mirror_json,
    mirror_lines,
    mirror_verify_json,
    mirror_verify_lines,
)
from trainctl.views.terminal.progress import ProgressDisplay
from trainctl.views.terminal.text import warning_text
from trainctl.weights.mirrors import Mirror


def list_command(
    session: CliSession,
    flags: options.TrustFlags = NO_FLAGS,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """List mirrored sources with size, revision and users."""
    with open_with_trust(session, flags) as workspace:
        inventory = workspace.declared_mirror.store.inventory()
    form = mirror_json(inventory)
    lines = mirror_lines(inventory, session.output.width)
    print_result(session.output, format_, form, lines, (MIRROR_COLUMNS, form["sources"]))
    lost = (f"{line}." for line in lost_listing_lines(inventory.rows))
    for text in (*lost, *(f"{text}. {DAMAGED_REFERENCE}" for text in inventory.damaged)):
        session.output.note(warning_text(text, code="mirror-corrupt"))
    return 0


def verify_command(
    session: CliSession,
    repair: Annotated[
        bool, option("--repair", "Delete corrupt blobs; the next apply downloads them again")
    ] = False,
    flags: options.TrustFlags = NO_FLAGS,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Verify all blobs in the mirror against their digests."""
    with (
        open_with_trust(session, flags) as workspace,
        ProgressDisplay(session.output) as progress,
    ):
        report = workspace.declared_mirror.store.verify(
            repair,
            lambda done, total, files: progress.track("mirror", "verifying", done, total),
            session.output.note,
        )
    form = mirror_verify_json(report)
    lines = mirror_verify_lines(report, session.output.width)
    print_result(session.output, format_, form, lines, (FINDING_COLUMNS, form["findings"]))
    return 0 if report.ok else 1


def gc_command(
    session: CliSession,
    dry_run: options.DryRun = False,
    drop_unused: Annotated[
        str | None,
        option("--drop-unused DURATION", "Also drop references unused for this long, e.g. 90d"),
    ] = None,
    url: Annotated[
        str | None, option("--url URL", "Mirror to clean up [default: from the manifest]")
    ] = None,
    endpoint_url: Annotated[
        str | None, option("--endpoint-url URL", "Endpoint for S3-compatible servers, with --url")
    ] = None,
    flags: options.TrustFlags = NO_FLAGS,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Delete unreferenced blobs from the mirror. Safe during an apply, and safe to interrupt."""
    unused = None if drop_unused is None else duration("--drop-unused", drop_unused)
    with open_with_trust(session, flags) as workspace:
        mirror = _mirror_at(workspace, url, endpoint_url) or workspace.declared_mirror
        report = mirror.store.gc(GcOptions(dry_run, unused), session.output.note)
    lines = gc_lines(report, session.output.width)
    form = gc_json(report)
    rows = (GC_COLUMNS, gc_rows(form))
    print_result(session.output, format_, form, lines, rows)
    return 0


def _mirror_at(workspace: Workspace, url: str | None, endpoint_url: str | None) -> Mirror | None:
    if url is None and endpoint_url is None:
        return None
    from pydantic import ValidationError  # slow to import

    from trainctl.model.specs.location import Location
    from trainctl.operations.mirrors import normalize_endpoint

    try:
        place = Location(url=url or "", endpoint_url=endpoint_url)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(
            f"--url: {problem['msg']}", problem.get("ctx", {}).get("detail", "")
        ) from None
    return workspace.mirror_at(MirrorSite(place.url, normalize_endpoint(place.endpoint_url)))
