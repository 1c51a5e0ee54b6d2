"""Events of an apply, as lines for people and as JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainctl.base.units import format_duration
from trainctl.errors import ManifestError, TrainctlError, TrustError
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.events import Event, EventType
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.progress import ProgressDisplay

_PROGRESS = 1.0
"""Seconds between two progress lines of one address."""


class JsonEventPrinter:
    """A listener: ``type``, ``time`` (UTC), ``address``, ``message``, and what the event carries as ``data``."""

    def __init__(
        self,
        output: TerminalOutput,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._output = output
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._over = False

    def __call__(self, event: Event) -> None:
        """Print one event; progress at most once a second for each address, and nothing after the summary."""
        self.several([event])

    def several(self, events: Sequence[Event]) -> None:
        """Print many events at once: much faster than one by one."""
        with self._lock:
            now = self._clock()
            due = [event for event in events if self._due(event, now)]
            if self._over or not due:
                return
            self._over = due[-1].type is EventType.SUMMARY
            try:
                self._output.json_lines(_event_json(event, now) for event in due)
            except BrokenPipeError:
                self._over = True  # the reader is gone; that doesn't stop the work

    def fail(self, error: TrainctlError) -> None:
        """Report an error that ended the command, then close."""
        if isinstance(error, ManifestError | TrustError):
            found = (
                diagnostic for diagnostic in error.diagnostics if isinstance(diagnostic, Diagnostic)
            )
            self.refuse(found, error.exit_code)
            return
        data = {"severity": "error", "code": error.code, "summary": error.summary}
        self(
            Event(
                EventType.DIAGNOSTIC,
                str(error),
                None,
                {**data, "detail": error.detail, "address": error.address},
            )
        )
        self.close("failed", {"exit_code": error.exit_code})

    def refuse(self, diagnostics: Iterable[Diagnostic], exit_code: int) -> None:
        """Report why a plan can't be applied, then close."""
        for diagnostic in diagnostics:
            self(Event(EventType.DIAGNOSTIC, diagnostic.summary, None, diagnostic.to_json()))
        self.close("failed", {"exit_code": exit_code})

    def close(self, message: str, data: Mapping[str, Any]) -> None:
        """End with a summary unless there has been one."""
        self(Event(EventType.SUMMARY, message, None, data))

    def _due(self, event: Event, now: float) -> bool:
        if event.type is not EventType.STEP_PROGRESS:
            return True
        name = str(event.address)
        if 0 <= now - self._told.get(name, float("-inf")) < _PROGRESS:
            return False
        self._told[name] = now
        return True


def _event_json(event: Event, now: float) -> dict[str, Any]:
    when = now if event.time is None else event.time
    time_ = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return {
        "type": event.type.value,
        "time": time_.replace("+00:00", "Z"),
        "address": str(event.address) if event.address else None,
        "message": event.message,
        "data": dict(event.data),
    }


_UNCOLORED_EVENTS = frozenset(
    {EventType.STEP_STARTED, EventType.STEP_FAILED, EventType.DIAGNOSTIC, EventType.LOG}
)
"""Told on standard error; what came of it goes to standard output."""

_COLORS = {
    EventType.STEP_DONE: "green",
    EventType.STEP_SKIPPED: "yellow",
}


class TextEventPrinter:
    """A listener: ``job.sft: creating…``, then ``job.sft: created (3.2 s)``. Called from many threads.

    A closed reader doesn't stop the work: after a broken pipe nothing more is printed.
    """

    def __init__(self, output: TerminalOutput, progress: ProgressDisplay) -> None:
        self._output = output
        self._progress = progress
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Show one event."""
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
        text = _event_text(event)
        with self._progress.suspended():
            if event.type in _UNCOLORED_EVENTS:
                self._output.note(text)
            else:
                self._output.print(self._colored(event, text))
                self._output.flush()

    def _colored(self, event: Event, text: str) -> str:
        color = _COLORS.get(event.type)
        return self._output.style(text, color) if color else text


def _event_text(event: Event) -> str:
    text = f"{event.address}: {event.message}" if event.address else event.message
    data = event.data
    if event.type is EventType.STEP_FAILED:
        return f"{event.address}: failed: {event.message}"  # what to do comes at the end, with the error itself
    if event.type is EventType.STEP_STARTED:
        text += "…"
    if data.get("seconds") is not None:
        text += f" ({format_duration(data['seconds'])})"
    if event.type is EventType.STEP_DONE and data.get("run"):
        text += f", run {data['run']}"
    detail = str(data.get("detail") or "")
    return "\n".join([text, *(f"  {line}" for line in detail.splitlines())])
