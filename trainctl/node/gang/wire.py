"""Lines between the supervisors of a gang: JSON, each authenticated and numbered. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any, Dict, List, Optional

MOST_BYTES = 2**16
"""The longest line: whoever sends more is nobody of the gang."""

_READ_BYTES = 2**14


class Wire:
    """One connection; it never blocks. ``serves`` is the side that accepted it and sends its nonce first.

    Both sides show that they know the token by authenticating every line with a key made of it and of both nonces, so that a line is
    worth nothing on another connection, twice, or in the other direction.
    """

    def __init__(self, connection: socket.socket, token: str, *, serves: bool) -> None:
        self._connection = connection
        self._token = token
        self._serves = serves
        self._nonce = secrets.token_hex(16)
        self._key: Optional[bytes] = None
        self._text = b""
        self._left = b""
        self._waiting: List[Dict[str, Any]] = []
        self._sent = self._received = 0
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if serves:
            self._left += json.dumps({"nonce": self._nonce}).encode() + b"\n"

    def fileno(self) -> int:
        """For those who wait for it."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits until the other side reads."""
        return bool(self._left)

    def send(self, value: Dict[str, Any]) -> None:
        """Say it as soon as it can be said; ConnectionError once the other side is gone."""
        if self._key is None:
            self._waiting.append(value)
            return
        text = json.dumps(value).encode()
        self._left += self._mac(self._serves, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        while self._left:
            try:
                sent = self._connection.send(self._left)
            except BlockingIOError:
                return
            self._left = self._left[sent:]

    def arrived(self) -> List[Dict[str, Any]]:
        """What can be read now; ConnectionError at the end, and for a line that is not the gang's."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("closed")
        self._text += data
        found = []
        while b"\n" in self._text:
            line, _, self._text = self._text.partition(b"\n")
            value = self._read(line)
            if value is not None:
                found.append(value)
        if len(self._text) > MOST_BYTES:
            raise ConnectionError("a line without an end")
        return found

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _read(self, line: bytes) -> Optional[Dict[str, Any]]:
        if self._key is None:
            self._agree(_parsed(line))
            return None
        mac, _, text = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(not self._serves, self._received, text)):
            raise ConnectionError("not authentic")
        self._received += 1
        return _parsed(text)

    def _agree(self, greeting: Dict[str, Any]) -> None:
        """Make the key of the token and both nonces; the side that was called spoke first."""
        theirs = str(greeting.get("nonce"))
        both = self._nonce + theirs if self._serves else theirs + self._nonce
        self._key = hmac.new(self._token.encode(), both.encode(), hashlib.sha256).digest()
        if not self._serves:
            self._left += json.dumps({"nonce": self._nonce}).encode() + b"\n"
        for value in self._waiting:
            self.send(value)
        self._waiting = []
        self.flush()

    def _mac(self, by_server: bool, number: int, text: bytes) -> bytes:
        numbered = b"%d %d " % (by_server, number) + text
        return hmac.new(self._key or b"", numbered, hashlib.sha256).hexdigest().encode()


def _parsed(text: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionError("not an object")
    return value
