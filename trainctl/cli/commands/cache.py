"""``trainctl cache``: training caches and weights caches."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.units import format_bytes
from trainctl.cli import options
from trainctl.cli.options import OutputFormat, TableFormat, argument, duration, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, open_workspace, require_terminal
from trainctl.errors import UsageError
from trainctl.inputs.environment import project_id
from trainctl.model.address import slug
from trainctl.operations.caches import CacheSelection, clear, evict, select_cache, summarize, verify
from trainctl.views.caches import (
    EVICT_COLUMNS,
    VERIFY_COLUMNS,
    cache_csv,
    cache_full_warning,
    cache_json,
    cache_lines,
    cleared_lines,
    evict_lines,
    listings_json,
    unreachable_cache_lines,
    verify_lines,
)
from trainctl.views.terminal.progress import ProgressDisplay
from trainctl.views.terminal.text import pluralize, warning_text

ProjectArgument = Annotated[str, argument("PROJECT", "Project name")]
ClusterArgument = Annotated[str, argument("CLUSTER", "Cluster of the nodes")]
ClusterOption = Annotated[
    str | None, option("--cluster CLUSTER", "Cluster, if several have a cache")
]
TeamOption = Annotated[
    bool, option("--team", "Use the cache shared by all projects of the cluster")
]
NodesOption = Annotated[list[str] | None, option("--node NODE", "Only this node (repeatable)")]


class CacheSort(StrEnum):
    """Sort keys of entries."""

    FILEPATH = "filepath"
    SIZE = "size"
    MODIFIED = "modified"
    TYPE = "type"
    PERMISSIONS = "permissions"


class SummaryFormat(StrEnum):
    """Formats of ``summarize``; ``cli-table`` is the hosted service's ``text``."""

    TEXT = "text"
    TABLE = "cli-table"
    CSV = "csv"
    JSON = "json"


def summarize_command(
    session: CliSession,
    project: ProjectArgument,
    cluster: ClusterOption = None,
    team: TeamOption = False,
    sort: Annotated[
        CacheSort, option("--sort KEY", "Sort by filepath, size, modified, type or permissions")
    ] = CacheSort.FILEPATH,
    order: options.Order = options.SortOrder.ASC,
    form: Annotated[
        SummaryFormat, option("-o, --format, --output FORMAT", "text, json or csv")
    ] = SummaryFormat.TEXT,
) -> int:
    """Show the contents of a training cache."""
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
        chosen = select_cache(state, project, cluster, team=team)
        usage = summarize(workspace, chosen) if chosen else None
        identity = project_id(state.lineage, slug(project.removeprefix("project.")))
    by, descending, width = sort.value, order is options.SortOrder.DESC, session.output.width
    document = cache_json(usage, identity, by, descending=descending)
    print_result(
        session.output,
        "text" if form is SummaryFormat.TABLE else form,
        document,
        cache_lines(usage, identity, by, descending=descending, width=width) if usage else (),
        cache_csv(document),
    )
    if usage is None:
        text = f"{project} has no training cache yet"
        session.output.note(warning_text(text, code="no-training-cache"))
        return 0
    warning = cache_full_warning(usage)
    if warning:
        session.output.note(warning_text(warning, code="cache-too-full"))
    return 0


def clear_command(
    session: CliSession,
    project: ProjectArgument,
    older_than: Annotated[
        str | None,
        option("--older-than DURATION", "Only files last modified this long ago, e.g. 30d or 12h"),
    ] = None,
    cluster: ClusterOption = None,
    team: TeamOption = False,
    dry_run: options.DryRun = False,
    auto_approve: options.AutoApprove = False,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Delete files from a training cache, all or by age. Fails while a run uses the cache."""
    age = None if older_than is None else duration("--older-than", older_than)
    if not (auto_approve or dry_run):
        require_terminal(session)
    with open_workspace(session) as workspace:
        chosen = select_cache(workspace.ledger.state(), project, cluster, team=team)
        if chosen is None:
            raise UsageError(f"{project} has no training cache yet", code="cache-not-found")
        if not (auto_approve or dry_run):
            preview = clear(workspace, chosen, age, dry_run=True)
            if not preview.files:
                print_result(session.output, format_, asdict(preview), cleared_lines(preview))
                return 1 if preview.left else 0
            size = f"{pluralize(preview.files, 'file')} ({format_bytes(preview.bytes)})"
            if not approve(session, f"Remove {size} from {chosen.directory}?"):
                session.output.note("Nothing was removed.")
                return 1
        result = clear(workspace, chosen, age, dry_run=dry_run)
    print_result(session.output, format_, asdict(result), cleared_lines(result))
    return 1 if result.left else 0


def verify_command(
    session: CliSession,
    cluster: ClusterArgument,
    node: NodesOption = None,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Verify cached weights against their digests and delete corrupt copies."""
    selection = CacheSelection(cluster, tuple(node or ()))
    with open_workspace(session) as workspace, ProgressDisplay(session.output) as progress:
        report = verify(
            workspace,
            selection,
            lambda node_id, done, total: progress.track(node_id, "verifying", done, total),
        )
    lines = verify_lines(report, session.output.width)
    form = listings_json(report, VERIFY_COLUMNS, bytes=report.hashed)
    rows = (VERIFY_COLUMNS, form["listings"])
    print_result(session.output, format_, form, lines, rows)
    session.output.note(*unreachable_cache_lines(report))
    corrupt = any(row["outcome"] == "corrupt" for _, row in report.listings)
    return 1 if corrupt or report.unreachable else 0


def evict_command(
    session: CliSession,
    cluster: ClusterArgument,
    listings: Annotated[
        list[str] | None, argument("LISTING", "Listing IDs or addresses of weights [default: all]")
    ] = None,
    node: NodesOption = None,
    dry_run: options.DryRun = False,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Remove weights from node caches. Keeps weights that a live run uses."""
    names = tuple(listings or ())
    with open_workspace(session) as workspace:
        report = evict(
            workspace, CacheSelection(cluster, tuple(node or ())), names, dry_run=dry_run
        )
    lines = evict_lines(report, dry_run=dry_run, width=session.output.width)
    form = listings_json(report, EVICT_COLUMNS, dry_run=dry_run)
    rows = (EVICT_COLUMNS, form["listings"])
    print_result(session.output, format_, form, lines, rows)
    session.output.note(*unreachable_cache_lines(report))
    stays = any(row["outcome"] != "evicted" for _, row in report.listings)
    return 1 if (names and stays) or report.unreachable else 0
