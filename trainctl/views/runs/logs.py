"""Print log lines of a job as text or JSON events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainctl.base.units import format_bytes
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import escape, unreachable_json, unreachable_text, warning_text

if TYPE_CHECKING:
    from trainctl.model.reports import LogBatch, UnreachableNode

_MAX_LINE = 2**20


class TextLogPrinter:
    """Prints lines unchanged, each after the mark of its run and rank."""

    def __init__(self, output: TerminalOutput, mark: Callable[[LogBatch], str]) -> None:
        self._output = output
        self._mark_of, self._mark = mark, ""
        self._open: tuple[str, int] | None = None
        self._begun = False
        self._held = ""

    def show(self, batch: LogBatch) -> None:
        """Print lines."""
        if batch.skipped_bytes or (batch.run, batch.rank) != self._open:
            self.close()
        self._mark = self._mark_of(batch)
        if batch.skipped_bytes:
            text = f"{self._mark}{_gap_text(batch)}"
            self._output.note(warning_text(text, code="log-truncated"))
        if batch.prepared_by:
            self._output.note(_prepared_elsewhere_text(batch))
        if batch.text is None:
            return
        self._open = (batch.run, batch.rank)
        lines, end, part = self._held + batch.text, "\n", ""
        self._held = ""
        if batch.open:
            lines, end, part = lines.rpartition("\n")
        if end:
            self._output.log_lines(lines, self._mark, self._first)
            self._begun = False
        if not batch.open:
            self._open = None
        else:
            self._held = self._output.log_part(part, self._first)
            self._begun = self._begun or len(self._held) < len(part)

    def close(self) -> None:
        """End an unfinished line."""
        if self._begun or self._held:
            self._output.log_lines(self._held, self._mark, self._first)
        self._open, self._begun, self._held = None, False, ""

    @property
    def _first(self) -> str:
        return "" if self._begun else self._mark


class JsonLogPrinter:
    """Emits an event for each line, with its time; ``addresses``: jobs by run."""

    def __init__(
        self, emit: Callable[[Sequence[Event]], None], addresses: Mapping[str, Address]
    ) -> None:
        self._emit = emit
        self._addresses = addresses
        self._open: dict[tuple[str, int], str] = {}

    def show(self, batch: LogBatch) -> None:
        """Print lines; keep an unfinished line until it is complete or rewritten."""
        events: list[Event] = []
        key, address = (batch.run, batch.rank), self._addresses[batch.run]
        if batch.skipped_bytes:
            missing = {"rank": batch.rank, "skipped_bytes": batch.skipped_bytes}
            data = {"severity": "warning", "code": "log-truncated", **missing}
            events += self._rest(key, batch.time)
            events.append(Event(EventType.DIAGNOSTIC, _gap_text(batch), address, data, batch.time))
        if batch.prepared_by:
            data = {"severity": "note", "rank": batch.rank, "prepared_by": batch.prepared_by}
            text = _prepared_elsewhere_text(batch)
            events.append(Event(EventType.DIAGNOSTIC, text, address, data))
        if batch.text is not None:
            lines = (self._open.pop(key, "") + batch.text).split("\n")
            if batch.open and "\r" in lines[-1]:
                lines[-1] = lines[-1].rstrip("\r").rpartition("\r")[2]
            elif batch.open and len(lines[-1]) < _MAX_LINE:
                self._open[key] = lines.pop()
            events += [self._event(line, key, batch.time) for line in lines]
        self._emit(events)

    def show_unreachable(self, unreachable: Sequence[UnreachableNode]) -> None:
        """Print a warning for each unreachable node."""
        events, address = [], next(iter(self._addresses.values()))
        for node, row in zip(unreachable, unreachable_json(unreachable), strict=True):
            data = {"severity": "warning", "code": "node-unreachable", **row}
            text = unreachable_text(node, "the log")
            events.append(Event(EventType.DIAGNOSTIC, text, address, data))
        self._emit(events)

    def close(self) -> None:
        """Print the unfinished lines."""
        self._emit([event for key in sorted(self._open) for event in self._rest(key)])

    def _rest(self, key: tuple[str, int], time: float | None = None) -> list[Event]:
        return [self._event(self._open.pop(key), key, time)] if key in self._open else []

    def _event(self, line: str, key: tuple[str, int], time: float | None) -> Event:
        run, rank = key
        return Event(EventType.LOG, line, self._addresses[run], {"rank": rank, "run": run}, time)


def _gap_text(batch: LogBatch) -> str:
    return f"{format_bytes(batch.skipped_bytes)} of the log are missing: the log exceeded its size limit"


def _prepared_elsewhere_text(batch: LogBatch) -> str:
    return (
        f"The training cache was prepared by {escape(batch.prepared_by)}; see the log of that run."
    )
