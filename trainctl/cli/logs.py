"""Print the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trainctl.cli.options import Format, duration
from trainctl.cli.session import Session
from trainctl.errors import NodeError, NodeUnreachable, UsageError
from trainctl.model.reports import Away
from trainctl.operations.logs import Moment, Selection, log_pieces
from trainctl.operations.runs import Run, refresh
from trainctl.operations.workspace import Workspace
from trainctl.views.events import EventsJson
from trainctl.views.logs import LogJson, LogText
from trainctl.views.terminal.text import away_lines


@dataclass(frozen=True, slots=True)
class Printed:
    """The run after its log was printed; ``code`` is 0 if no part of the log is missing."""

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
    """Print the job's own lines, prefixed with the rank if there are several.

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
    return Printed(run, report_missing(session, away, "the log"))


def _now(workspace: Workspace, run: Run, wanted: Selection) -> Run:
    """The run as it is afterwards; a followed run must be refreshed, to report how it ended."""
    try:
        return refresh(workspace, run)
    except NodeError:
        if wanted.follow:
            raise
        return run


def moment(flag: str, text: str | None) -> Moment | None:
    """``10m`` (that long ago), or RFC 3339, in UTC where it names no zone; UsageError names the flag."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is not None:
        return Moment((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    try:
        return Moment(duration(flag, text), ago=True)
    except UsageError:
        raise UsageError(
            f"{flag} {text!r} is not a time", "Write 10m, 2h30m, 1d or 2026-01-31T12:00:00Z."
        ) from None


def report_missing(session: Session, away: Sequence[Away], what: str) -> int:
    """Warn of each unreachable node and what is missing of it; the exit code: 0 if nothing is."""
    session.output.note(*away_lines(away, what))
    return NodeUnreachable.exit_code if away else 0
