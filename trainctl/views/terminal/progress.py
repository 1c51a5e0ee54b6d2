"""Progress: redrawn lines on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.events import Event, EventType
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import display_width, shorten, wrap

T = TypeVar("T")
_WINDOW = 5.0
"""Seconds of the rate: long enough to be steady, short enough to show a stall."""
_LEAST = 0.5
"""Minimum seconds between samples for a rate."""

_LEAST_BYTES = 4096
"""Minimum bytes for a rate; fewer would forecast weeks."""


class RateMeter:
    """Progress and rate of one step; ``total`` is 0 if unknown."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, done: int, total: int, now: float) -> None:
        """Set the progress; a decrease (a chunk fetched again) restarts the rate."""
        if done < self.done:
            self._seen.clear()
        self.done, self.total = done, total
        self._seen.append((now, done))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Return the bytes per second; 0 if unknown or stalled."""
        self._forget(now)
        if not self._seen:
            return 0.0
        began, first = self._seen[0]
        seconds = now - began
        moved = self.done - first
        return moved / seconds if seconds >= _LEAST and moved >= _LEAST_BYTES else 0.0

    def text(self, now: float) -> str:
        """Format ``512 MB of 1.5 GB, 110 MB/s, 9.1 s left``."""
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
        # Keep one sample older than the window, as its start.
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()


_STYLE = compile_lazily(r"\x1b\[\d{1,2}m")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class LiveDisplay:
    """Lines redrawn in place; the context removes them and restores the cursor."""

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
        """Redraw with these lines, as many as fit."""
        if not (lines or self._drawn):
            return
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


def show_updates(
    output: TerminalOutput,
    updates: Iterable[T],
    lines: Callable[[T, int | None], list[str]],
    forms: Callable[[T], Iterable[Any]] | None,
) -> None:
    """Print each update: by ``forms`` as JSON lines, or as lines for a width, redrawn or repeated."""
    with LiveDisplay(output) as live:
        for update in updates:
            if forms is not None:
                output.json_lines(forms(update))
            elif output.can_redraw:
                width = output.error_width or 80
                live.show([part for line in lines(update, width) for part in wrap(line, width)])
            else:
                output.prose(*lines(update, output.width), "")
                output.flush()
    if output.can_redraw and forms is None:
        output.prose(*lines(update, output.width))


_REDRAW = 0.1
_PLAIN = 10.0
_ENDS = frozenset(
    {EventType.STEP_DONE, EventType.STEP_FAILED, EventType.STEP_SKIPPED, EventType.RUN_STATUS}
)


class _StepProgress:
    def __init__(self, now: float) -> None:
        self.start = now
        self.phase = ""
        self.meter = RateMeter()
        self.printed = now

    def line(self, name: str, now: float, width: int | None = None) -> str:
        """Format the line; with ``width``, shorten name and phase."""
        counts_bytes = bool(self.meter.done or self.meter.total)
        phase = f" {self.phase}" if self.phase else "" if counts_bytes else " working"
        numbers = self.meter.text(now) if counts_bytes else format_duration(now - self.start)
        if width is not None:
            available = max(width - display_width(numbers) - 2, 2)
            used = min(display_width(phase), max(available // 2, available - display_width(name)))
            name = shorten(name, available - used)
            phase = shorten(phase, used) if used else ""
        return f"{name}:{phase} {numbers}"


class ProgressDisplay:
    """Displays the progress of events; thread-safe; a context manager.

    It refreshes itself ``every`` so many seconds, to show stalls; None for never.
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
            threading.Thread(target=self._refresh_loop, args=(self._every,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            self._steps.clear()
            self._live.__exit__()

    def listen(self, event: Event) -> None:
        """Update the display by an event."""
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
        """Show progress of something that is not a step; thread-safe."""
        data = {"phase": phase, "done": done, "total": total}
        with self._lock:
            self._update(name, Event(EventType.STEP_PROGRESS, "", data=data), self._clock())

    def refresh(self) -> None:
        """Refresh the display."""
        with self._lock:
            now = self._clock()
            self._draw(now)
            self._print_due(now)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Remove the drawn lines during the block."""
        with self._lock:
            self._live.show([])
            yield
            self._draw(self._clock())

    def note(self, text: str) -> None:
        """Print a line above the drawn lines; safe in signal handlers."""
        with self.suspended():
            self._output.note(text)

    def _update(self, name: str, event: Event, now: float) -> None:
        step = self._steps.setdefault(name, _StepProgress(now))
        step.phase = str(event.data.get("phase", step.phase))
        if "done" in event.data:
            total = event.data.get("total") or 0
            step.meter.update(int(event.data["done"]), int(total), now)
        self._print_due(now)
        if now - self._last >= _REDRAW:
            self._draw(now)

    def _refresh_loop(self, every: float) -> None:
        try:
            while not self._over.wait(every):
                self.refresh()
        except OSError:
            return  # the reader is gone

    def _print_due(self, now: float) -> None:
        for name, step in self._steps.items() if not self._output.can_redraw else ():
            if now - step.printed >= _PLAIN:
                step.printed = now
                self._output.note(step.line(name, now))

    def _end(self, name: str, now: float) -> None:
        step = self._steps.pop(name, None)
        if step is not None and step.meter.done and not self._output.can_redraw:
            self._output.note(step.line(name, now))
        elif step is not None:
            self._draw(now)

    def _draw(self, now: float) -> None:
        if not self._output.can_redraw:
            return
        width, height = shutil.get_terminal_size()
        most = max(1, height - 2)
        lines = [step.line(name, now, width - 1) for name, step in self._steps.items()]
        if len(lines) > most:
            lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more"]
        self._live.show([shorten(line, width - 1) for line in lines])
        if lines:
            self._last = now
