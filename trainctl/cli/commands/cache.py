"""``trainctl cache``: training caches, and nodes' caches of weights."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from trainctl.base.units import format_bytes, parse_duration
from trainctl.cli.consent import approve, require_terminal
from trainctl.cli.listings import ListingFormat, ListingFormatOption, NodesOption, show
from trainctl.cli.options import ClusterOption, Format, FormatOption, ProjectArgument, TeamOption
from trainctl.cli.planning import AutoApprove
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import NodeUnreachable, UsageError
from trainctl.jobs.environment import project_id
from trainctl.model.away import Away
from trainctl.model.cache import CacheContent, Cleared
from trainctl.operations.node_cache import Which, evict, verify
from trainctl.operations.training_caches import choose, clear, summarize
from trainctl.views.caches import (
    EVICT_COLUMNS,
    VERIFY_COLUMNS,
    cache_csv,
    cache_json,
    cache_lines,
    cache_rows,
    cleared_json,
    cleared_lines,
    elsewhere_lines,
    evict_json,
    evict_lines,
    silent_lines,
    too_full,
    verify_json,
    verify_lines,
)
from trainctl.views.progress import Progress
from trainctl.views.text import counted, warned


class Sort(StrEnum):
    """By what entries are sorted."""

    FILEPATH = "filepath"
    SIZE = "size"
    MODIFIED = "modified"
    TYPE = "type"
    PERMISSIONS = "permissions"


class Order(StrEnum):
    """Which end comes first."""

    ASC = "asc"
    DESC = "desc"


class Form(StrEnum):
    """How the summary is printed; ``cli-table`` is the hosted service's word for ``text``."""

    TEXT = "text"
    TABLE = "cli-table"
    CSV = "csv"
    JSON = "json"


def summarize_command(
    ctx: typer.Context,
    project: ProjectArgument,
    cluster: ClusterOption = None,
    team: TeamOption = False,
    sort: Annotated[Sort, typer.Option("--sort", help="By what it is sorted.")] = Sort.FILEPATH,
    order: Annotated[Order, typer.Option("--order", help="Which end comes first.")] = Order.ASC,
    form: Annotated[
        Form, typer.Option("--output", "-o", "--format", help="How the result is printed.")
    ] = Form.TEXT,
) -> int:
    """Show what a project's training cache holds."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
        chosen = choose(state, project, cluster, team=team)
        summary = summarize(workspace, chosen) if chosen else None
        identity = project_id(state.lineage, project.removeprefix("project."))
    found, away = (summary.content, summary.away) if summary else (None, ())
    _show(session, found, away, identity, sort, order is Order.DESC, form)
    if found is None or summary is None:
        text = f"{project} has no training cache yet"
        session.output.note(warned(text, code="no-training-cache"))
        return 0
    full = too_full(found)
    if full:
        session.output.note(warned(full, code="cache-too-full"))
    for line in elsewhere_lines(found, away):
        session.output.note(line)
    return 0 if summary.same else NodeUnreachable.exit_code


def _show(
    session: Session,
    found: CacheContent | None,
    away: Sequence[Away],
    identity: str,
    sort: Sort,
    descending: bool,
    form: Form,
) -> None:
    if form is Form.JSON:
        session.output.json(cache_json(found, identity, sort.value, away, descending=descending))
    elif form is Form.CSV:
        session.output.print(cache_csv(found, sort.value, descending=descending))
    elif found is not None:
        width = session.output.width
        for line in cache_lines(found, identity, sort.value, descending=descending, width=width):
            session.output.prose(line)


def clear_command(
    ctx: typer.Context,
    project: ProjectArgument,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Only what was last modified so long ago: 30d, 12h."
        ),
    ] = None,
    cluster: ClusterOption = None,
    team: TeamOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how much would be removed.")
    ] = False,
    auto_approve: AutoApprove = False,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Remove files from a project's training cache: those of some age, or all. Refused while a run uses it."""
    session = session_of(ctx)
    age = None if older_than is None else _age(older_than)
    if not (auto_approve or dry_run):
        require_terminal(session)
    with open_workspace(session) as workspace:
        chosen = choose(workspace.ledger.state(), project, cluster, team=team)
        if chosen is None:
            raise UsageError(f"{project} has no training cache yet", code="no-such-cache")
        if not (auto_approve or dry_run):
            what = clear(workspace, chosen, age, dry_run=True)
            if not what.files:
                return _shown(session, what, format_)
            size = f"{counted(what.files, 'file')} ({format_bytes(what.bytes)})"
            if not approve(session, f"Remove {size} from {chosen.directory}?"):
                session.output.note("Nothing was removed.")
                return 1
        done = clear(workspace, chosen, age, dry_run=dry_run)
    return _shown(session, done, format_)


def _shown(session: Session, done: Cleared, format_: Format) -> int:
    if format_ is Format.JSON:
        session.output.json(cleared_json(done))
    else:
        for line in cleared_lines(done):
            session.output.prose(line)
    return 1 if done.left else 0


def _age(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from None


def verify_command(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Whose nodes.")],
    node: NodesOption = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Hash the weights in nodes' caches again and remove what is wrong. Exit code 1 if a live run has it, or a node can't be asked."""
    session = session_of(ctx)
    which = Which(cluster, tuple(node or ()))
    with open_workspace(session) as workspace, Progress(session.output) as progress:
        report = verify(
            workspace,
            which,
            lambda node_id, done, total: progress.track(node_id, "verifying", done, total),
        )
    lines = verify_lines(report, session.output.width)
    rows = (VERIFY_COLUMNS, cache_rows(report, VERIFY_COLUMNS))
    show(session.output, format_, verify_json(report), rows, lines)
    for line in silent_lines(report):
        session.output.note(line)
    wrong = any(row.outcome == "wrong" for row in report.listings)
    return 1 if wrong or report.silent else 0


def evict_command(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Whose nodes.")],
    listings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LISTING]...", help="Ids, or addresses of weights; everything by default."
        ),
    ] = None,
    node: NodesOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Evict weights from nodes' caches; what a live run needs stays. Exit code 1 if something that was named does, or a node can't be asked."""
    session = session_of(ctx)
    names = tuple(listings or ())
    with open_workspace(session) as workspace:
        report = evict(workspace, Which(cluster, tuple(node or ())), names, dry_run=dry_run)
    lines = evict_lines(report, dry_run=dry_run, width=session.output.width)
    rows = (EVICT_COLUMNS, cache_rows(report, EVICT_COLUMNS))
    show(session.output, format_, evict_json(report, dry_run=dry_run), rows, lines)
    for line in silent_lines(report):
        session.output.note(line)
    stays = any(row.outcome != "evicted" for row in report.listings)
    return 1 if (names and stays) or report.silent else 0
