"""Handling of Ctrl-C: the first finishes running steps, the second stops."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_OUTPUTS = (1, 2)


class Interrupt:
    """Context manager of the main thread that handles SIGINT, SIGTERM and SIGHUP.

    ``stopping``: start no more steps. ``cancelled``: stop now, for ``cause``. After ``begin_watch_only`` there is
    nothing to finish. All SIGHUPs of a closed terminal together count as one first interrupt; an ignored SIGHUP (nohup)
    stays ignored. Handlers only pass the signal to a thread, because they may run during a write or with a lock held.
    """

    def __init__(self, notify: Callable[[str], None] = lambda _: None) -> None:
        self.stopping = threading.Event()
        self.cancelled = threading.Event()
        self._notify = notify
        self._watching = False
        self.cause = "interrupted"
        self._before: dict[int, object] = {}
        self._terminals: tuple[int, ...] = ()
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="interrupt", daemon=True)

    def __enter__(self) -> Interrupt:
        self._listener.start()
        self._terminals = tuple(filter(os.isatty, _OUTPUTS))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # returned by signal.signal
        self._arrived.put(None)
        self._listener.join()

    def cancel(self, cause: str) -> None:
        """Stop now for another reason than a signal."""
        if not self.cancelled.is_set():
            self.cause = cause
            self._notify(f"Stopping: {cause}.")
        self.stopping.set()
        self.cancelled.set()

    def begin_watch_only(self) -> None:
        """Treat later interrupts as the end of watching: there is nothing to finish."""
        self._watching = True

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Suspend watch-only mode in a block that must be finished."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # output to closed terminals goes to /dev/null: no step fails
            for closed in (terminal for terminal in self._terminals if not os.isatty(terminal)):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, closed)
                os.close(null)
        self._arrived.put(number)  # SimpleQueue.put is reentrant

    def _listen(self) -> None:
        while (number := self._arrived.get()) is not None:
            if number == signal.SIGHUP and self.stopping.is_set():
                continue
            with suppress(OSError):  # the output may be closed
                if self._watching:
                    self.stopping.set()
                elif not self.stopping.is_set():
                    self.stopping.set()
                    self._notify(
                        "Finishing operations in progress. Press Ctrl-C again to stop immediately; no data is lost either way."
                    )
                else:
                    self.cancelled.set()
                    self._notify("Stopping.")
