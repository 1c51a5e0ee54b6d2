"""``trainctl cache clear``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.base.units import format_bytes, parse_duration
from trainctl.cli.approval import approve, require_terminal
from trainctl.cli.options import ClusterOption, Format, FormatOption, ProjectArgument, TeamOption
from trainctl.cli.planning import AutoApprove
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.model.cache import Cleared
from trainctl.operations.training_caches import choose, clear
from trainctl.views.caches import cleared_json, cleared_lines
from trainctl.views.text import counted


def command(
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
