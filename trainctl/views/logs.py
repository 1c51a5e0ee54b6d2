"""A job's own lines, as text and as JSON events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.model.reports import LogBatch, UnreachableNode
from trainctl.views.events import JsonEventPrinter
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.text import unreachable_json, unreachable_text, warning_text

_MAX_LINE = 2**20


class TextLogPrinter:
    """Lines as the job wrote them; with the rank before each where there are ``several``."""

    def __init__(self, output: TerminalOutput, *, several: bool) -> None:
        self._output = output
        self._several = several
        self._open: int | None = None
        self._begun = False
        self._held = ""

    def show(self, piece: LogBatch) -> None:
        """Print more lines."""
        if piece.skipped_bytes or piece.rank != self._open:
            self.close()
        if piece.skipped_bytes:
            whose = f" of rank {piece.rank}" if self._several else ""
            self._output.note(warning_text(_gap_text(piece, whose), code="log-truncated"))
        if piece.prepared_by:
            self._output.note(_prepared_elsewhere_text(piece))
        if not piece.lines:
            return
        self._open = piece.rank
        lines = [self._held + piece.lines[0], *piece.lines[1:]]
        self._held = ""
        whole, part = (lines[:-1], lines[-1]) if piece.open else (lines, None)
        if whole:
            self._output.log_lines(whole, self._mark, self._first)
            self._begun = False
        if part is None:
            self._open = None
        else:
            self._held = self._output.log_part(part, self._first)
            self._begun = self._begun or len(self._held) < len(part)

    def close(self) -> None:
        """End a line that was left open."""
        if self._begun or self._held:
            self._output.log_lines((self._held,), self._mark, self._first)
        self._open, self._begun, self._held = None, False, ""

    @property
    def _mark(self) -> str:
        return f"[rank {self._open}] " if self._several else ""

    @property
    def _first(self) -> str:
        return "" if self._begun else self._mark


class JsonLogPrinter:
    """An event for each line, with the time at which it was written."""

    def __init__(self, emit: JsonEventPrinter, address: Address, run: str) -> None:
        self._emit = emit
        self._address = address
        self._run = run
        self._open: dict[int, str] = {}

    def show(self, piece: LogBatch) -> None:
        """Print more lines. An unfinished line waits; a line that is rewritten in place is printed as it is now."""
        events: list[Event] = []
        if piece.skipped_bytes:
            events = [*self._rest(piece.rank, piece.time), self._gap(piece)]
        if piece.prepared_by:
            events.append(self._elsewhere(piece))
        if piece.lines:
            first, *rest = piece.lines
            lines = [self._open.pop(piece.rank, "") + first, *rest]
            if piece.open and "\r" in lines[-1]:
                lines[-1] = lines[-1].rstrip("\r").rpartition("\r")[2]
            elif piece.open and len(lines[-1]) < _MAX_LINE:
                self._open[piece.rank] = lines.pop()
            events += [self._event(line, piece.rank, piece.time) for line in lines]
        self._emit.several(events)

    def show_unreachable(self, unreachable: Sequence[UnreachableNode]) -> None:
        """Report the unreachable nodes, whose ranks' lines are missing."""
        rows = zip(unreachable, unreachable_json(unreachable), strict=True)
        self._emit.several([self._missing(one, row) for one, row in rows])

    def close(self) -> None:
        """Print the lines that never ended."""
        self._emit.several([event for rank in sorted(self._open) for event in self._rest(rank)])

    def _rest(self, rank: int, time: float | None = None) -> list[Event]:
        return [self._event(self._open.pop(rank), rank, time)] if rank in self._open else []

    def _missing(self, one: UnreachableNode, row: Mapping[str, Any]) -> Event:
        data = {"severity": "warning", "code": "node-unreachable", **row}
        return Event(EventType.DIAGNOSTIC, unreachable_text(one, "the log"), self._address, data)

    def _gap(self, piece: LogBatch) -> Event:
        gone = {"rank": piece.rank, "skipped_bytes": piece.skipped_bytes}
        data = {"severity": "warning", "code": "log-truncated", **gone}
        return Event(EventType.DIAGNOSTIC, _gap_text(piece), self._address, data, piece.time)

    def _elsewhere(self, piece: LogBatch) -> Event:
        data = {"severity": "note", "rank": piece.rank, "prepared_by": piece.prepared_by}
        return Event(EventType.DIAGNOSTIC, _prepared_elsewhere_text(piece), self._address, data)

    def _event(self, line: str, rank: int, time: float | None) -> Event:
        data = {"rank": rank, "run": self._run}
        return Event(EventType.LOG, line, self._address, data, time)


def _gap_text(piece: LogBatch, whose: str = "") -> str:
    return f"{format_bytes(piece.skipped_bytes)} of the log{whose} are missing: the log exceeded its size limit"


def _prepared_elsewhere_text(piece: LogBatch) -> str:
    return (
        f"The training cache was prepared by {escape(piece.prepared_by)}; see the log of that run."
    )
