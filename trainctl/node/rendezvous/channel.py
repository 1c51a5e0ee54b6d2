"""Messages of a gang and its helper processes. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import signal
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence

from trainctl.base.protocol.runs import GangSpec
from trainctl.base.system.syscalls import fork_child

MAX_BYTES = 2**16
"""Longest line; a peer that sends more is not a rank of the gang."""

_READ_BYTES = 2**16
Value = Dict[str, Any]


class AuthenticatedConnection:
    """A non-blocking authenticated connection.

    Both sides prove that they know the token: each line carries a MAC over direction, number and text, keyed by the
    token and a nonce of each side, so that it can't be replayed or reflected.
    """

    def __init__(self, connection: socket.socket, token: str, *, serves: bool) -> None:
        """``serves``: this side accepted the connection."""
        self._connection = connection
        self._token = token
        self._serves = serves
        self._nonce = secrets.token_hex(16)
        self._key: Optional[bytes] = None
        self._received_text = b""
        self._unsent = json.dumps({"nonce": self._nonce}).encode() + b"\n"
        self._sent = self._received = 0
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Descriptor for poll."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether lines wait for the other side to read."""
        return bool(self._unsent)

    @property
    def greeted(self) -> bool:
        """Whether the other side's nonce was received, so that values can be sent."""
        return self._key is not None

    def send(self, value: Value) -> None:
        """Send a value as soon as possible; ConnectionError if disconnected."""
        text = json.dumps(value).encode()
        self._unsent += self._mac(self._serves, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        """Send as much as possible without blocking."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    def receive(self) -> List[Value]:
        """Values that can be read now; ConnectionError at the end or for an invalid line."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("closed")
        *lines, self._received_text = (self._received_text + data).split(b"\n")
        if len(self._received_text) > MAX_BYTES:
            raise ConnectionError("line too long")
        if lines and self._key is None:
            theirs = str(_parse(lines.pop(0)).get("nonce"))
            both = self._nonce + theirs if self._serves else theirs + self._nonce
            self._key = hmac.new(self._token.encode(), both.encode(), hashlib.sha256).digest()
        return [self._read(line) for line in lines]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, line: bytes) -> Value:
        mac, _, text = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(not self._serves, self._received, text)):
            raise ConnectionError("not authentic")
        self._received += 1
        return _parse(text)

    def _mac(self, by_server: bool, number: int, text: bytes) -> bytes:
        numbered = b"%d %d " % (by_server, number) + text
        return hmac.new(self._key or b"", numbered, hashlib.sha256).hexdigest().encode()


class ReliableChannel:
    """Channel over connections that may break: resends unacknowledged values."""

    def __init__(self) -> None:
        self._acknowledged = 0
        self._unacknowledged: List[Value] = []
        self.received_count = 0
        """Number of values received from the other side."""

    @property
    def all_acknowledged(self) -> bool:
        """Whether the other side has received everything."""
        return not self._unacknowledged

    def send_value(self, value: Value) -> Value:
        """Return the line for a value and store the value until it is acknowledged."""
        self._unacknowledged.append(value)
        return {"value": value}

    def heartbeat(self) -> Value:
        """Return a line that only acknowledges what was received."""
        return {"heard": self.received_count}

    def unacknowledged(self, received_count: int) -> List[Value]:
        """Lines to resend on a new connection, by the other side's count."""
        self._acknowledge(received_count)
        return [{"value": value} for value in self._unacknowledged]

    def receive(self, line: Value) -> Optional[Value]:
        """Return the value of a line; None for a heartbeat."""
        self._acknowledge(int(line.get("heard", 0)))
        value = line.get("value")
        if not isinstance(value, dict):
            return None
        self.received_count += 1
        return value

    def _acknowledge(self, received_count: int) -> None:
        new = max(0, received_count - self._acknowledged)
        self._acknowledged += new
        del self._unacknowledged[:new]


def _parse(text: bytes) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionError("not a JSON object")
    return value


class HelperPipe:
    """End of a socket pair between supervisor and helper: a line of JSON per value."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._text = b""
        self.open = True

    def fileno(self) -> int:
        """Descriptor for poll."""
        return self._end.fileno()

    def send_value(self, value: Value) -> None:
        """Send a value; ignored if the other side has exited."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, seconds: float = 0.0) -> List[Value]:
        """Wait for values; ``open`` is False afterwards if the other side has exited."""
        if not self.open or not select.select([self._end], [], [], seconds)[0]:
            return []
        try:
            data = self._end.recv(_READ_BYTES)
        except OSError:
            data = b""
        self.open = bool(data)
        *lines, self._text = (self._text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class HelperProcess:
    """A child that runs ``work`` with the other end of ``line``."""

    def __init__(self, work: Callable[[HelperPipe], None], descriptors: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()

        def run() -> int:
            work(HelperPipe(theirs))
            return 0

        self._pid = fork_child(run, theirs.fileno(), *descriptors)
        theirs.close()
        self.line = HelperPipe(ours)

    def finish(self, seconds: float) -> None:
        """Give it time to send its last values, then kill it."""
        while self.line.open and seconds > 0:
            self.line.receive(0.1)
            seconds -= 0.1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self.line.close()


class DisconnectTimeouts:
    """Seconds until the other side counts as lost."""

    def __init__(self, gang: Optional[GangSpec] = None) -> None:
        gang = gang or GangSpec()
        self.closed = gang.get("disconnect_timeout", 10.0)
        self.silent = gang.get("silence_timeout", 60.0)

    @property
    def heartbeat(self) -> float:
        """Interval of heartbeats."""
        return min(2.0, self.silent / 10)

    @property
    def reconnect(self) -> float:
        """Time without messages until a new connection is tried."""
        return self.silent / 4
