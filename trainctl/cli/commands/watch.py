"""``trainctl watch``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.apply.interrupt import Interrupt
from trainctl.cli import planning
from trainctl.cli.options import Format, FormatOption
from trainctl.cli.planning import PlanningFlags, duration, words
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import Interrupted, UsageError
from trainctl.model.events import Emit
from trainctl.operations.watching import Watcher
from trainctl.views.events import EventsJson, EventsText
from trainctl.views.progress import Progress


def command(
    ctx: typer.Context,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="How often to look: 30s.")
    ] = "30s",
    once: Annotated[bool, typer.Option("--once", help="Look once, for cron and CI.")] = False,
    format_: FormatOption = Format.TEXT,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    trust: planning.TrustFile = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Carry on what was approved and needs somebody's reach: what waits for other jobs or for nodes, what was cut off."""
    session = session_of(ctx)
    seconds = duration("--interval", interval)
    if seconds <= 0:
        raise UsageError("--interval is more than nothing", "Write for example 30s or 5m.")
    flags = PlanningFlags(
        variables=words(var), var_files=tuple(var_file or ()), parallelism=parallelism, trust=trust
    )
    output = session.output

    def look(emit: Emit, interrupt: Interrupt) -> int:
        watcher = Watcher(lambda: open_workspace(session, flags), emit, interrupt, parallelism)
        if once:
            return watcher.look()
        watcher.watch(seconds)
        return Interrupted.exit_code

    if format_ is Format.JSON:
        with Interrupt(output.note) as interrupt:
            return look(EventsJson(output), interrupt)
    if not once:
        output.note(f"Looking every {interval}. Ctrl-C ends it; runs go on.")
    with Progress(output) as progress, Interrupt(progress.note) as interrupt:
        return look(EventsText(output, progress), interrupt)
