"""Print events of an apply as text or JSON lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.units import format_duration
from trainctl.errors import ManifestError, TrainctlError, TrustError
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.events import Event, EventType
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import format_timestamp

if TYPE_CHECKING:
    from trainctl.views.terminal.progress import ProgressDisplay

_PROGRESS_SECONDS = 1.0
"""Seconds between two progress events of one address."""


class JsonEventPrinter:
    """Prints events as JSON: ``type, time, address, message, data``."""

    def __init__(
        self,
        output: TerminalOutput,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._output = output
        self._clock = clock
        self._lock = threading.Lock()
        self._last_progress: dict[str, float] = {}
        self._over = False

    def __call__(self, event: Event) -> None:
        """Print an event, except frequent progress and events after the summary."""
        self.several([event])

    def several(self, events: Sequence[Event]) -> None:
        """Print several events with one write, which is faster."""
        with self._lock:
            now = self._clock()
            due = [event for event in events if self._due(event, now)]
            if self._over or not due:
                return
            self._over = due[-1].type is EventType.SUMMARY
            try:
                self._output.json_lines(_event_json(event, now) for event in due)
            except BrokenPipeError:
                self._over = True  # the work continues without a reader

    def fail(self, error: TrainctlError) -> None:
        """Print the error that ended the command, and the summary."""
        if isinstance(error, ManifestError | TrustError):
            diagnostics = (item for item in error.diagnostics if isinstance(item, Diagnostic))
            self.refuse(diagnostics, error.exit_code)
            return
        named = ("code", "summary", "detail", "address")
        data = {"severity": "error", **{name: getattr(error, name) for name in named}}
        self(Event(EventType.DIAGNOSTIC, str(error), None, data))
        self.close("failed", {"exit_code": error.exit_code})

    def refuse(self, diagnostics: Iterable[Diagnostic], exit_code: int) -> None:
        """Print the errors of a plan that can't be applied, and the summary."""
        for diagnostic in diagnostics:
            self(Event(EventType.DIAGNOSTIC, diagnostic.summary, None, diagnostic.to_json()))
        self.close("failed", {"exit_code": exit_code})

    def close(self, message: str, data: Mapping[str, Any]) -> None:
        """Print the summary, unless it was printed."""
        self(Event(EventType.SUMMARY, message, None, data))

    def _due(self, event: Event, now: float) -> bool:
        if event.type is not EventType.STEP_PROGRESS:
            return True
        name = str(event.address)
        if 0 <= now - self._last_progress.get(name, float("-inf")) < _PROGRESS_SECONDS:
            return False
        self._last_progress[name] = now
        return True


def _event_json(event: Event, now: float) -> dict[str, Any]:
    return {
        "type": event.type.value,
        "time": format_timestamp(now if event.time is None else event.time),
        "address": str(event.address) if event.address else None,
        "message": event.message,
        "data": dict(event.data),
    }


_UNCOLORED_EVENTS = frozenset({EventType.STEP_STARTED, EventType.DIAGNOSTIC, EventType.LOG})
"""Printed to stderr; all others go to stdout."""

_COLORS = {
    EventType.STEP_DONE: "green",
    EventType.STEP_SKIPPED: "yellow",
}


class TextEventPrinter:
    """Prints ``job.sft: creating…``, ``job.sft: created (3.2 s)``; thread-safe.

    Prints nothing after a broken pipe, and doesn't stop the work.
    """

    def __init__(self, output: TerminalOutput, progress: ProgressDisplay) -> None:
        self._output = output
        self._progress = progress
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Print an event."""
        with self._lock:
            if self._closed:
                return
            try:
                self._progress.listen(event)
                if event.type is not EventType.STEP_PROGRESS:
                    self._line(event)
            except BrokenPipeError:
                self._closed = True

    def _line(self, event: Event) -> None:
        data = event.data
        text = f"{event.address}: {event.message}" if event.address else event.message
        if event.type is EventType.STEP_STARTED:
            text += "…"
        if data.get("seconds") is not None:
            text += f" ({format_duration(data['seconds'])})"
        if event.type is EventType.STEP_DONE and data.get("run"):
            text += f", run {data['run']}"
        if data.get("detail"):
            text = "\n  ".join([text, *str(data["detail"]).splitlines()])
        with self._progress.suspended():
            if event.type is EventType.STEP_FAILED:
                from trainctl.views.problems import error_lines

                detail = str(data.get("detail") or "")
                error = TrainctlError(event.message, detail, code=data.get("code"))
                self._output.note(*error_lines(error, str(event.address), self._output.error_style))
            elif event.type in _UNCOLORED_EVENTS:
                self._output.note(text)
            else:
                color = _COLORS.get(event.type)
                self._output.print(self._output.style(text, color) if color else text)
                self._output.flush()
