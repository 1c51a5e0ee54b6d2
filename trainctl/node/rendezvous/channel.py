"""How the parts of a gang talk: authenticated lines between hosts, each delivered once and in order, and a helper process. See DESIGN.md, "Gangs"."""

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

from trainctl.base.protocol.spec import GangSpec
from trainctl.base.system.syscalls import fork_child

MAX_BYTES = 2**16
"""The longest line: a peer that sends more is not of the gang."""

_READ_BYTES = 2**16
Value = Dict[str, Any]


class AuthenticatedConnection:
    """One connection that never blocks.

    Both sides prove that they know the token: every line carries a MAC by a key made of it and a nonce of each side, over
    direction, number and text, so that it is valid on no other connection, not twice, and not in the other direction.
    """

    def __init__(self, connection: socket.socket, token: str, *, serves: bool) -> None:
        """``serves``: this side accepted the connection; it sends only after it has received something."""
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
        """For poll."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether lines wait until the other side reads."""
        return bool(self._unsent)

    @property
    def greeted(self) -> bool:
        """Whether the other side's nonce has arrived, so that values may be sent."""
        return self._key is not None

    def send(self, value: Value) -> None:
        """Send a value as soon as possible; ConnectionError once the other side is gone."""
        text = json.dumps(value).encode()
        self._unsent += self._mac(self._serves, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    def arrived(self) -> List[Value]:
        """The values that can be read now; ConnectionError at the end, and for a line that is not the gang's."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("closed")
        *lines, self._received_text = (self._received_text + data).split(b"\n")
        if len(self._received_text) > MAX_BYTES:
            raise ConnectionError("a line without an end")
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
    """One side of a conversation over connections that may break: values are kept until the other side has them."""

    def __init__(self) -> None:
        self._acknowledged = 0
        self._kept: List[Value] = []
        self.heard = 0
        """How many values of the other side have arrived here."""

    @property
    def all_heard(self) -> bool:
        """Whether the other side has everything."""
        return not self._kept

    def send_value(self, value: Value) -> Value:
        """The line that carries a value."""
        self._kept.append(value)
        return {"value": value}

    def pulse(self) -> Value:
        """The line that says only that this side is alive, and what it has heard."""
        return {"heard": self.heard}

    def again(self, heard: int) -> List[Value]:
        """The lines for a new connection, whose other side has heard so many values."""
        self._drop(heard)
        return [{"value": value} for value in self._kept]

    def take(self, line: Value) -> Optional[Value]:
        """The value in a line; None for a pulse."""
        self._drop(int(line.get("heard", 0)))
        value = line.get("value")
        if not isinstance(value, dict):
            return None
        self.heard += 1
        return value

    def _drop(self, heard: int) -> None:
        new = max(0, heard - self._acknowledged)
        self._acknowledged += new
        del self._kept[:new]


def _parse(text: bytes) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionError("not an object")
    return value


class HelperPipe:
    """One end of a pair of sockets between a supervisor and its helper: a line of JSON each way for each thing said."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._text = b""
        self.open = True

    def fileno(self) -> int:
        """For those who wait for it."""
        return self._end.fileno()

    def send_value(self, value: Value) -> None:
        """Send a value; it is dropped if the other side is gone."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(value).encode() + b"\n")

    def arrived(self, seconds: float = 0.0) -> List[Value]:
        """What was said; waits so long for it. Afterwards ``open`` tells whether the other side is still there."""
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
        """Hang up."""
        self._end.close()


class HelperProcess:
    """A child that runs ``work`` with the other end of ``line``, and keeps ``kept`` open."""

    def __init__(self, work: Callable[[HelperPipe], None], kept: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()

        def run() -> int:
            work(HelperPipe(theirs))
            return 0

        self._pid = fork_child(run, theirs.fileno(), *kept)
        theirs.close()
        self.line = HelperPipe(ours)

    def finish(self, seconds: float) -> None:
        """Let it say what is left to be said, but not longer than that."""
        while self.line.open and seconds > 0:
            self.line.arrived(0.1)
            seconds -= 0.1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self.line.close()


class DisconnectTimeouts:
    """When the other side counts as gone, in seconds: after its connection closed and did not come back, or after it was silent."""

    def __init__(self, found: Optional[GangSpec] = None) -> None:
        """``found`` is the specification's ``gang``."""
        found = found or GangSpec()
        self.closed = found.get("disconnect_timeout", 10.0)
        self.silent = found.get("silence_timeout", 60.0)

    @property
    def pulse(self) -> float:
        """How often each side says that it is there."""
        return min(2.0, self.silent / 10)

    @property
    def quiet(self) -> float:
        """After how much silence another connection is tried: the network may have forgotten this one."""
        return self.silent / 4
