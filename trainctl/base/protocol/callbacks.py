"""Requests from a running call on a node to its client.

A request is an event ``{"request": NUMBER, …}``, its response a line ``{"response": NUMBER, …}`` on standard input, where
empty lines are heartbeats. If the client disconnects, or sends nothing for a minute, the call stops.
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
    """The client has disconnected."""


class PendingRequest:
    """A request, and its response once received."""

    response: Optional[Mapping[str, Any]] = None


class CallbackClient:
    """Thread-safe sender of requests; ``gone`` is set on disconnect."""

    def __init__(self, stream: BinaryIO, emit: Emit) -> None:
        self.gone = threading.Event()
        self._stream = stream
        self._emit = emit
        self._received_at = time.monotonic()
        self._changed = threading.Condition()
        self._numbers = count()
        self._open: Dict[int, PendingRequest] = {}
        for work in (self._listen, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event that needs no response."""
        with self._changed:
            self._emit(event)

    def request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return its response; CallerGone if disconnected."""
        return self.wait(self.begin(request))

    def begin(self, request: Mapping[str, Any]) -> PendingRequest:
        """Send a request without waiting for its response."""
        pending = PendingRequest()
        with self._changed:
            number = next(self._numbers)
            self._open[number] = pending
            self._emit({"request": number, **request})
        return pending

    def wait(self, pending: PendingRequest) -> Mapping[str, Any]:
        """Wait for a response; CallerGone if disconnected."""
        with self._changed:
            while pending.response is None:
                if self.gone.is_set():
                    raise CallerGone
                self._changed.wait(_POLL_SECONDS)
            return pending.response

    def _listen(self) -> None:
        """Read the descriptor itself: a buffer's lock could block the exit."""
        rest = b""
        while data := os.read(self._stream.fileno(), _READ_BYTES):
            self._received_at = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in filter(None, lines):
                self._receive(json.loads(line))
        self.gone.set()

    def _receive(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            self._open.pop(message["response"]).response = message
            self._changed.notify_all()

    def _watch(self) -> None:
        while time.monotonic() - self._received_at < _SILENCE_SECONDS:
            if self.gone.wait(_POLL_SECONDS):
                return
        self.gone.set()
