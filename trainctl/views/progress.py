"""Steps that are under way, on standard error: drawn again in place on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from trainctl.base.units import format_duration
from trainctl.model.events import Event, EventType
from trainctl.views.meter import Meter
from trainctl.views.output import Output
from trainctl.views.text import columns, shorten

_REDRAW = 0.1
_PLAIN = 10.0
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_CLEAR = "\r\x1b[J"

_ENDS = frozenset(
    {EventType.STEP_DONE, EventType.STEP_FAILED, EventType.STEP_SKIPPED, EventType.RUN_STATUS}
)


class _Step:
    def __init__(self, now: float) -> None:
        self.began = now
        self.phase = ""
        self.meter = Meter()
        self.told = now

    def line(self, name: str, now: float, width: int | None = None) -> str:
        """In so many columns if it must fit: then name and phase share what the numbers leave."""
        moves = bool(self.meter.done or self.meter.total)
        what = f" {self.phase}" if self.phase else "" if moves else " working"
        numbers = self.meter.text(now) if moves else format_duration(now - self.began)
        if width is not None:
            room = max(width - columns(numbers) - 2, 2)
            half = room // 2
            taken = min(columns(what), max(half, room - columns(name)))
            name = shorten(name, room - taken)
            what = shorten(what, taken) if taken else ""
        return f"{name}:{what} {numbers}"


class Progress:
    """Listens to events from many threads. Use it as a context: the cursor comes back whatever happens.

    ``every`` is how often, in seconds, it looks by itself, so that silence shows; None is never.
    """

    def __init__(
        self,
        output: Output,
        clock: Callable[[], float] = time.monotonic,
        every: float | None = 0.5,
    ) -> None:
        self._output = output
        self._clock = clock
        self._every = every
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._steps: dict[str, _Step] = {}
        self._drawn = 0
        self._hidden = False
        self._last = float("-inf")

    def __enter__(self) -> Self:
        if self._every is not None:
            threading.Thread(target=self._look, args=(self._every,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            self._steps.clear()
            self._erase()
            if self._hidden:
                self._output.draw([], _SHOW_CURSOR)
                self._hidden = False

    def listen(self, event: Event) -> None:
        """Take note of an event and show what has become of it."""
        if event.address is None:
            return
        with self._lock:
            now = self._clock()
            name = str(event.address)
            if event.type in _ENDS:
                self._end(name, now)
            elif event.type in (EventType.STEP_STARTED, EventType.STEP_PROGRESS):
                self._update(name, event, now)

    def track(self, name: str, phase: str, done: int, total: int) -> None:
        """Show how far something is that is no step of an apply; from any thread."""
        data = {"phase": phase, "done": done, "total": total}
        with self._lock:
            self._update(name, Event(EventType.STEP_PROGRESS, "", data=data), self._clock())

    def look(self) -> None:
        """Show how things stand, whether or not anything was heard."""
        with self._lock:
            now = self._clock()
            if self._output.draws:
                self._redraw(now)
            else:
                self._tell(now)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the drawn lines away while other lines are printed."""
        with self._lock:
            self._erase()
            yield
            self._draw(self._clock())

    def note(self, text: str) -> None:
        """A line that stays above the drawn ones; may be called from a signal handler."""
        with self.aside():
            self._output.note(text)

    def _update(self, name: str, event: Event, now: float) -> None:
        step = self._steps.setdefault(name, _Step(now))
        step.phase = str(event.data.get("phase", step.phase))
        if "done" in event.data:
            total = event.data.get("total") or 0
            step.meter.update(int(event.data["done"]), int(total), now)
        if not self._output.draws:
            self._tell(now)
        elif now - self._last >= _REDRAW:
            self._redraw(now)

    def _look(self, every: float) -> None:
        try:
            while not self._over.wait(every):
                self.look()
        except OSError:
            return  # the reader has left

    def _tell(self, now: float) -> None:
        for name, step in self._steps.items():
            if now - step.told >= _PLAIN:
                step.told = now
                self._output.note(step.line(name, now))

    def _redraw(self, now: float) -> None:
        self._erase()
        self._draw(now)

    def _end(self, name: str, now: float) -> None:
        step = self._steps.pop(name, None)
        if step is None:
            return
        if self._output.draws:
            self._redraw(now)
        elif step.meter.done:
            self._output.note(step.line(name, now))

    def _draw(self, now: float) -> None:
        if not (self._output.draws and self._steps):
            return
        width, height = shutil.get_terminal_size()
        room = max(1, height - 2)
        lines = [step.line(name, now, width - 1) for name, step in self._steps.items()]
        if len(lines) > room:
            lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more"]
        lines = [shorten(line, width - 1) for line in lines]
        self._output.draw(lines, "" if self._hidden else _HIDE_CURSOR)
        self._hidden = True
        self._drawn = len(lines)
        self._last = now

    def _erase(self) -> None:
        if self._drawn:
            self._output.draw([], f"\x1b[{self._drawn}A{_CLEAR}")
            self._drawn = 0
