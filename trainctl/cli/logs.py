"""Printing a run's log."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.cli.options import Format
from trainctl.cli.partial import told_of
from trainctl.cli.session import Session
from trainctl.errors import NodeError
from trainctl.model.away import Away
from trainctl.operations.logs import Selection, log_pieces
from trainctl.operations.runs import Run, refresh
from trainctl.operations.workspace import Workspace
from trainctl.views.events import EventsJson
from trainctl.views.logs import LogJson, LogText


@dataclass(frozen=True, slots=True)
class Printed:
    """The run as it stands after its log was printed; ``code`` is 0 if that was all of the log."""

    run: Run
    code: int


def print_logs(
    session: Session,
    workspace: Workspace,
    run: Run,
    wanted: Selection,
    format_: Format,
    *,
    closes: bool = True,
) -> Printed:
    """The job's own lines and nothing else, with the rank before each where there are several; what else there is to say of it.

    With ``closes`` a summary is the last event.
    """
    emit = EventsJson(session.output)
    view: LogText | LogJson
    if format_ is Format.JSON:
        view = LogJson(emit, run.job.address, run.record.id)
    else:
        several = wanted.rank is None and len(run.record.ranks) > 1
        view = LogText(session.output, several=several)
    away: list[Away] = []
    try:
        for piece in log_pieces(workspace, run, wanted):
            if isinstance(piece, Away):
                away.append(piece)
            else:
                view.show(piece)
    finally:
        view.close()
    if isinstance(view, LogJson):
        view.lacks(away)
    run = _now(workspace, run, wanted)
    if not run.record.ranks and format_ is Format.TEXT:
        why = f": {run.record.error}" if run.record.error else "."
        how = "has not reached a node yet" if run.record.status.live else "never started"
        session.output.note(f"Run {run.record.number} ({run.record.id}) {how}{why}")
    if format_ is Format.JSON and closes:
        emit.close("end of log", {"run": run.record.id, "status": run.record.status.value})
    return Printed(run, told_of(session, away, "the log"))


def _now(workspace: Workspace, run: Run, wanted: Selection) -> Run:
    """The run as it stands afterwards; who followed it must be told how it ended."""
    try:
        return refresh(workspace, run)
    except NodeError:
        if wanted.follow:
            raise
        return run
