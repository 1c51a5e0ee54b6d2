"""Lines of JSON between the helpers of a gang, over TLS; each value once and in order, whatever connections break in between."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

MOST_BYTES = 2**16
"""The longest line that is accepted."""

_READ_BYTES = 2**14
_NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)

Value = Dict[str, Any]


class Meeting(NamedTuple):
    """Where rank 0's helper listens, the token that opens it, and the sha256 of its certificate."""

    port: int
    token: str
    fingerprint: str


class Wire:
    """One connection. It never blocks; a handshake that is not done yet is continued by ``arrived``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._text = b""
        self._left = b""
        self._closed = False
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """The descriptor, to poll."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits until the other side reads."""
        return bool(self._left)

    def send(self, value: Value) -> None:
        """Send a value as soon as the connection takes it; OSError once the other side is gone."""
        self._left += json.dumps(value).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        with contextlib.suppress(*_NOT_NOW):
            while self._left:
                self._left = self._left[self._connection.send(self._left) :]

    def arrived(self) -> List[Value]:
        """Values that can be read now; OSError at the end, and for a line that is too long or not JSON."""
        with contextlib.suppress(*_NOT_NOW):
            while not self._closed and len(self._text) <= MOST_BYTES:
                data = self._connection.recv(_READ_BYTES)
                self._closed = not data
                self._text += data
        *lines, self._text = self._text.split(b"\n")
        if len(self._text) > MOST_BYTES:
            raise ConnectionError("a line without an end")
        if self._closed and not lines:
            raise ConnectionError("closed")
        return [_parsed(line) for line in lines]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Talk:
    """One side of a conversation over several connections. A value is kept until the other side says that it received it."""

    def __init__(self) -> None:
        self._said = 0
        self.heard = 0
        """How many values of the other side have arrived here."""
        self._unheard: List[Tuple[int, Value]] = []

    @property
    def all_heard(self) -> bool:
        """Whether the other side has everything."""
        return not self._unheard

    def say(self, value: Value) -> Value:
        """The line for a new value."""
        self._said += 1
        self._unheard.append((self._said, value))
        return self._line(self._said, value)

    def pulse(self) -> Value:
        """The line of a heartbeat, which acknowledges what arrived."""
        return {"heard": self.heard}

    def again(self, heard: int) -> List[Value]:
        """The lines for a new connection, whose other side has received so many values."""
        self._drop(heard)
        return [self._line(number, value) for number, value in self._unheard]

    def take(self, line: Value) -> Optional[Value]:
        """The value of a line; None for a heartbeat, and for a value that arrived before."""
        self._drop(int(line.get("heard", 0)))
        if line.get("number") != self.heard + 1:
            return None
        self.heard += 1
        value = line.get("value")
        return value if isinstance(value, dict) else None

    def _line(self, number: int, value: Value) -> Value:
        return {"number": number, "value": value, "heard": self.heard}

    def _drop(self, heard: int) -> None:
        self._unheard = [entry for entry in self._unheard if entry[0] > heard]


def _parsed(text: bytes) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionError("not an object")
    return value
