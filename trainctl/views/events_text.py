"""What apply does, line by line, for people."""

from __future__ import annotations

import threading

from trainctl.base.units import format_duration
from trainctl.model.events import Event, EventType
from trainctl.views.output import Output
from trainctl.views.progress import Progress

_WORK = frozenset(
    {EventType.STEP_STARTED, EventType.STEP_FAILED, EventType.DIAGNOSTIC, EventType.LOG}
)
"""Told on standard error; what came of it goes to standard output."""

_COLORS = {
    EventType.STEP_DONE: "green",
    EventType.STEP_SKIPPED: "yellow",
}


class EventsText:
    """A listener: ``job.sft: creating…``, then ``job.sft: created (3.2 s)``. Called from many threads.

    A reader who has left doesn't stop the work: after a broken pipe nothing more is printed.
    """

    def __init__(self, output: Output, progress: Progress) -> None:
        self._output = output
        self._progress = progress
        self._lock = threading.Lock()
        self._nobody = False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            if self._nobody:
                return
            try:
                self._progress.listen(event)
                if event.type is not EventType.STEP_PROGRESS:
                    self._line(event)
            except BrokenPipeError:
                self._nobody = True

    def _line(self, event: Event) -> None:
        text = _words(event)
        with self._progress.aside():
            if event.type in _WORK:
                self._output.note(text)
            else:
                self._output.print(self._colored(event, text))
                self._output.flush()

    def _colored(self, event: Event, text: str) -> str:
        color = _COLORS.get(event.type)
        return self._output.style(text, color) if color else text


def _words(event: Event) -> str:
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
