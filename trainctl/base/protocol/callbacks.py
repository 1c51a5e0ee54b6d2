"""The other end of a conversation: what a program on a node asks its caller while it works.

It asks by an event ``{"ask": NUMBER, …}`` and is answered by a line ``{"answer": NUMBER, …}`` on standard input, where
empty lines only say that the caller is alive. If it is gone, or silent for a minute, the work is stopped.
"""

from __future__ import annotations

import json
import os
import threading
import time
from itertools import count
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional

_SILENCE_SECONDS = 60.0
_POLL_SECONDS = 1.0
_READ_BYTES = 2**16
Emit = Callable[[Mapping[str, Any]], None]


class CallerGone(Exception):
    """Nobody is there to answer."""


class PendingRequest:
    """A question, and its answer once there is one."""

    response: Optional[Mapping[str, Any]] = None


class CallbackClient:
    """Asks from many threads; ``gone`` is set as soon as the caller is gone."""

    def __init__(self, stream: BinaryIO, emit: Emit) -> None:
        self.gone = threading.Event()
        self._stream = stream
        self._emit = emit
        self._heard = time.monotonic()
        self._changed = threading.Condition()
        self._numbers = count()
        self._open: Dict[int, PendingRequest] = {}
        for work in (self._listen, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Say something, one thread at a time."""
        with self._changed:
            self._emit(event)

    def request(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a question, which may hold an ``error``; Gone where none will come."""
        return self.wait(self.begin(question))

    def begin(self, question: Mapping[str, Any]) -> PendingRequest:
        """Send a question whose answer is waited for later, or not at all."""
        asked = PendingRequest()
        with self._changed:
            number = next(self._numbers)
            self._open[number] = asked
            self._emit({"request": number, **question})
        return asked

    def wait(self, asked: PendingRequest) -> Mapping[str, Any]:
        """See ``request``."""
        with self._changed:
            while asked.response is None:
                if self.gone.is_set():
                    raise CallerGone
                self._changed.wait(_POLL_SECONDS)
            return asked.response

    def _listen(self) -> None:
        """From the descriptor itself: a thread that held a buffer's lock at the program's end would keep it from ending."""
        rest = b""
        while data := os.read(self._stream.fileno(), _READ_BYTES):
            self._heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in filter(None, lines):
                self._take(json.loads(line))
        self.gone.set()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            self._open.pop(message["response"]).response = message
            self._changed.notify_all()

    def _watch(self) -> None:
        while time.monotonic() - self._heard < _SILENCE_SECONDS:
            if self.gone.wait(_POLL_SECONDS):
                return
        self.gone.set()
