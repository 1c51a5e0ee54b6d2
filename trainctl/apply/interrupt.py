"""Ctrl-C: the first finishes what is in flight, the second gives up where it stands."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType


class Interrupt:
    """Two flags. As a context manager it listens to SIGINT and SIGTERM; only the main thread may enter it.

    A signal may come in the middle of a write, or while a lock is held: its handler only hands the number to a thread.

    ``stopping``: start nothing more. ``cancelled``: give up now, for ``cause``. Once ``only_watching``, there is nothing to finish.
    """

    def __init__(self, notify: Callable[[str], None] = lambda _: None) -> None:
        self.stopping = threading.Event()
        self.cancelled = threading.Event()
        self._notify = notify
        self._watching = False
        self.cause = "interrupted"
        self._before: dict[int, object] = {}
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="interrupt", daemon=True)

    def __enter__(self) -> Interrupt:
        self._listener.start()
        for number in (signal.SIGINT, signal.SIGTERM):
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

    def only_watching(self) -> None:
        """From now on nothing is done any more that an interrupt would have to finish."""
        self._watching = True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While it lasts there is something to finish again, though runs are only watched otherwise."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(number)  # may be interrupted by itself: SimpleQueue allows that

    def _listen(self) -> None:
        while self._arrived.get() is not None:
            with suppress(OSError):  # nobody reads what is said; that doesn't stop the stopping
                self._react()

    def _react(self) -> None:
        if self._watching:
            self.stopping.set()  # what is watched goes on by itself
        elif not self.stopping.is_set():
            self.stopping.set()
            self._notify(
                "Finishing what is in flight. Press Ctrl-C again to stop at once; nothing is lost either way."
            )
        else:
            self.cancelled.set()
            self._notify("Stopping.")
