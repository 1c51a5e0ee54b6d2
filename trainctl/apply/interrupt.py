"""Ctrl-C: the first finishes what is in flight, the second gives up where it stands. A closed terminal is a first one."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_SPOKEN_TO = (1, 2)


class Interrupt:
    """Two flags. As a context manager it listens to SIGINT, SIGTERM and SIGHUP; only the main thread may enter it.

    A closed terminal sends several SIGHUPs, from the kernel and the shell; all of them count as one first interrupt. An ignored
    SIGHUP, as under nohup, stays ignored.

    A signal may come in the middle of a write, or while a lock is held: its handler only hands the number to a thread.

    ``stopping``: start nothing more. ``cancelled``: give up now, for ``cause``. Once ``begin_watch_only``, there is nothing to finish.
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
        self._terminals = tuple(filter(os.isatty, _SPOKEN_TO))
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
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself handed out
        self._arrived.put(None)
        self._listener.join()

    def cancel(self, cause: str) -> None:
        """Give up now for another reason than a signal."""
        if not self.cancelled.is_set():
            self.cause = cause
            self._notify(f"Stopping: {cause}.")
        self.stopping.set()
        self.cancelled.set()

    def begin_watch_only(self) -> None:
        """From now on nothing is done any more that an interrupt would have to finish."""
        self._watching = True

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """While it lasts there is something to finish again, though runs are only watched otherwise."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._silence_terminal()
        self._arrived.put(number)  # may be interrupted by itself: SimpleQueue allows that

    def _listen(self) -> None:
        while (number := self._arrived.get()) is not None:
            with suppress(OSError):  # the reader is gone; that doesn't stop the stopping
                self._react(number)

    def _silence_terminal(self) -> None:
        """Have what is said to a terminal that is gone go nowhere: it is no reason for a step to fail."""
        for closed in (terminal for terminal in self._terminals if not os.isatty(terminal)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, closed)
            os.close(nowhere)

    def _react(self, number: int) -> None:
        if number == signal.SIGHUP and self.stopping.is_set():
            return
        if self._watching:
            self.stopping.set()  # what is watched goes on by itself
        elif not self.stopping.is_set():
            self.stopping.set()
            self._notify(
                "Finishing operations in progress. Press Ctrl-C again to stop immediately; no data is lost either way."
            )
        else:
            self.cancelled.set()
            self._notify("Stopping.")
