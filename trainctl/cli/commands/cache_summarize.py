"""``trainctl cache summarize``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from trainctl.cli.options import ClusterOption, ProjectArgument, TeamOption
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import NodeUnreachable
from trainctl.jobs.environment import project_id
from trainctl.model.away import Away
from trainctl.model.cache import CacheContent
from trainctl.operations.training_caches import choose, summarize
from trainctl.views.caches import cache_csv, cache_json, cache_lines, elsewhere_lines, too_full
from trainctl.views.text import warned


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


def command(
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
