"""Printing a run's log."""

from __future__ import annotations

from trainctl.cli.options import Format
from trainctl.cli.session import Session
from trainctl.model.events import Event, EventType
from trainctl.operations.logs import lines
from trainctl.operations.runs import Run, refresh
from trainctl.operations.workspace import Workspace
from trainctl.views.events_json import EventsJson


def print_logs(
    session: Session,
    workspace: Workspace,
    run: Run,
    *,
    rank: int | None = None,
    follow: bool = False,
    format_: Format,
) -> Run:
    """The job's own lines and nothing else, with the rank before each where there are several; the run as it is then."""
    several = len(run.record.ranks) > 1
    emit = EventsJson(session.output)
    for line in lines(workspace, run, rank=rank, follow=follow):
        if format_ is Format.JSON:
            emit(
                Event(
                    EventType.LOG,
                    line.text,
                    run.job.address,
                    {"rank": line.rank, "run": run.record.id},
                )
            )
        else:
            session.output.log(line.text, f"[rank {line.rank}] " if several else "")
    run = refresh(workspace, run)
    if not run.record.ranks and format_ is Format.TEXT:
        why = f": {run.record.error}" if run.record.error else "."
        session.output.note(f"Run {run.record.number} ({run.record.id}) never started{why}")
    if format_ is Format.JSON:
        emit.close("end of log", {"run": run.record.id, "status": run.record.status.value})
    return run
