"""Printing a run's log."""

from __future__ import annotations

from trainctl.cli.options import Format
from trainctl.cli.session import Session
from trainctl.errors import NodeError
from trainctl.operations.logs import Selection, log_pieces
from trainctl.operations.runs import Run, refresh
from trainctl.operations.workspace import Workspace
from trainctl.views.events_json import EventsJson
from trainctl.views.logs import LogJson, LogText


def print_logs(
    session: Session,
    workspace: Workspace,
    run: Run,
    wanted: Selection,
    format_: Format,
    *,
    closes: bool = True,
) -> Run:
    """The job's own lines and nothing else, with the rank before each where there are several; the run as it is then.

    With ``closes`` a summary is the last event.
    """
    emit = EventsJson(session.output)
    view: LogText | LogJson
    if format_ is Format.JSON:
        view = LogJson(emit, run.job.address, run.record.id)
    else:
        several = wanted.rank is None and len(run.record.ranks) > 1
        view = LogText(session.output, several=several)
    try:
        for piece in log_pieces(workspace, run, wanted):
            view.show(piece)
    finally:
        view.close()
    run = _now(workspace, run, wanted)
    if not run.record.ranks and format_ is Format.TEXT:
        why = f": {run.record.error}" if run.record.error else "."
        session.output.note(f"Run {run.record.number} ({run.record.id}) never started{why}")
    if format_ is Format.JSON and closes:
        emit.close("end of log", {"run": run.record.id, "status": run.record.status.value})
    return run


def _now(workspace: Workspace, run: Run, wanted: Selection) -> Run:
    """The run as it stands afterwards; who followed it must be told how it ended."""
    try:
        return refresh(workspace, run)
    except NodeError:
        if wanted.follow:
            raise
        return run
