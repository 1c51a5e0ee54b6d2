"""Progress of long work: drawn on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from trainctl.base.units import format_bytes, format_duration
from trainctl.model.events import Event, EventType
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import display_width, shorten

_WINDOW = 5.0
"""Seconds over which the rate is taken: long enough to be steady, short enough to show a stall."""
_LEAST = 0.5
"""Seconds that a rate needs at least: of two looks right after each other it would be of the looks."""

_LEAST_BYTES = 4096
"""A rate of less than so many would be of what is left over, and forecast weeks."""


class RateMeter:
    """Progress of one step. Times are seconds of one monotonic clock; ``total`` is 0 where it is not known."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, done: int, total: int, now: float) -> None:
        """Set what is done by now; a count that goes back (a chunk that is fetched again) restarts the rate."""
        if done < self.done:
            self._seen.clear()
        self.done, self.total = done, total
        self._seen.append((now, done))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Bytes a second over the last seconds; 0 while too little is known or nothing moves."""
        self._forget(now)
        if not self._seen:
            return 0.0
        began, first = self._seen[0]
        seconds = now - began
        moved = self.done - first
        return moved / seconds if seconds >= _LEAST and moved >= _LEAST_BYTES else 0.0

    def text(self, now: float) -> str:
        """``512 MB of 1.5 GB, 110 MB/s, 9.1 s left``."""
        parts = [format_bytes(self.done)]
        if self.total:
            parts[0] += f" of {format_bytes(self.total)}"
        rate = self.rate(now)
        if rate > 0:
            parts.append(f"{format_bytes(rate)}/s")
            if self.total > self.done:
                parts.append(f"{format_duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)

    def _forget(self, now: float) -> None:
        # One sample older than the window stays: it is where the window begins.
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()


_STYLE = re.compile(r"\x1b\[\d{1,2}m")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class LiveDisplay:
    """Lines that are drawn again in place. Use it as a context: the lines go and the cursor comes back, whatever happens."""

    def __init__(self, output: TerminalOutput) -> None:
        self._output = output
        self._drawn = 0
        self._hidden = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show([])
        if self._hidden:
            self._output.draw([], _SHOW_CURSOR)
            self._hidden = False

    def show(self, lines: list[str]) -> None:
        """Draw these in place of those before, as many as the window has room for."""
        width, height = shutil.get_terminal_size()
        before = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        if lines and not self._hidden:
            before += _HIDE_CURSOR
            self._hidden = True
        drawn, shown = 0, []
        for line in lines:
            rows = max(1, -(-display_width(_STYLE.sub("", line)) // max(width, 1)))
            if drawn + rows >= height:
                break
            drawn += rows
            shown.append(line)
        self._drawn = drawn
        if before or shown:
            self._output.draw(shown, before)


_REDRAW = 0.1
_PLAIN = 10.0
_ENDS = frozenset(
    {EventType.STEP_DONE, EventType.STEP_FAILED, EventType.STEP_SKIPPED, EventType.RUN_STATUS}
)


class _StepProgress:
    def __init__(self, now: float) -> None:
        self.began = now
        self.phase = ""
        self.meter = RateMeter()
        self.told = now

    def line(self, name: str, now: float, width: int | None = None) -> str:
        """In so many columns if it must fit: then name and phase share what the numbers leave."""
        moves = bool(self.meter.done or self.meter.total)
        what = f" {self.phase}" if self.phase else "" if moves else " working"
        numbers = self.meter.text(now) if moves else format_duration(now - self.began)
        if width is not None:
            room = max(width - display_width(numbers) - 2, 2)
            half = room // 2
            taken = min(display_width(what), max(half, room - display_width(name)))
            name = shorten(name, room - taken)
            what = shorten(what, taken) if taken else ""
        return f"{name}:{what} {numbers}"


class ProgressDisplay:
    """Listens to events from many threads. Use it as a context: the cursor comes back whatever happens.

    ``every`` is how often, in seconds, it looks by itself, so that silence shows; None is never.
    """

    def __init__(
        self,
        output: TerminalOutput,
        clock: Callable[[], float] = time.monotonic,
        every: float | None = 0.5,
    ) -> None:
        self._output = output
        self._clock = clock
        self._every = every
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._steps: dict[str, _StepProgress] = {}
        self._live = LiveDisplay(output)
        self._last = float("-inf")

    def __enter__(self) -> Self:
        if self._every is not None:
            threading.Thread(target=self._look, args=(self._every,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            self._steps.clear()
            self._live.__exit__()

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
            if self._output.can_redraw:
                self._draw(now)
            else:
                self._tell(now)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the drawn lines away while other lines are printed."""
        with self._lock:
            self._live.show([])
            yield
            self._draw(self._clock())

    def note(self, text: str) -> None:
        """A line that stays above the drawn ones; may be called from a signal handler."""
        with self.suspended():
            self._output.note(text)

    def _update(self, name: str, event: Event, now: float) -> None:
        step = self._steps.setdefault(name, _StepProgress(now))
        step.phase = str(event.data.get("phase", step.phase))
        if "done" in event.data:
            total = event.data.get("total") or 0
            step.meter.update(int(event.data["done"]), int(total), now)
        if not self._output.can_redraw:
            self._tell(now)
        elif now - self._last >= _REDRAW:
            self._draw(now)

    def _look(self, every: float) -> None:
        try:
            while not self._over.wait(every):
                self.look()
        except OSError:
            return  # the reader is gone

    def _tell(self, now: float) -> None:
        for name, step in self._steps.items():
            if now - step.told >= _PLAIN:
                step.told = now
                self._output.note(step.line(name, now))

    def _end(self, name: str, now: float) -> None:
        step = self._steps.pop(name, None)
        if step is None:
            return
        if self._output.can_redraw:
            self._draw(now)
        elif step.meter.done:
            self._output.note(step.line(name, now))

    def _draw(self, now: float) -> None:
        if not self._output.can_redraw:
            return
        width, height = shutil.get_terminal_size()
        room = max(1, height - 2)
        lines = [step.line(name, now, width - 1) for name, step in self._steps.items()]
        if len(lines) > room:
            lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more"]
        self._live.show([shorten(line, width - 1) for line in lines])
        if lines:
            self._last = now
