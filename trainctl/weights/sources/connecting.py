"""Connections to servers: straight or through a proxy, in the clear or by TLS, and by TLS within that to a proxy."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import SplitResult

from trainctl.weights.sources.proxies import Proxy
from trainctl.weights.sources.wire import Connected, Wire

T = TypeVar("T")
_PORTS = {"http": 80, "https": 443}
_READ_BYTES = 2**16


class Untrusted(Exception):
    """Nobody who is trusted vouches for ``who``."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(why)
        self.who = who
        self.why = why


def connect(
    parts: SplitResult, proxy: Proxy | None, tls: Callable[[], ssl.SSLContext], seconds: float
) -> Connected:
    """A connection over which a URL's server, or its proxy in place of it, can be asked. OSError and Untrusted where there is none."""
    host = parts.hostname or ""
    where = (proxy.host, proxy.port) if proxy else (host, parts.port or _PORTS[parts.scheme])
    plain = socket.create_connection(where, seconds)
    made: Connected = plain
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if proxy and proxy.secure:
            made = _secured(made, proxy.host, proxy.shown, tls())
        if proxy and parts.scheme == "https":
            _tunnel(made, parts, proxy, seconds)
        if parts.scheme == "https":
            made = _secured(made, host, host, tls())
    except BaseException:
        made.close()
        raise
    return made


def _tunnel(made: Connected, parts: SplitResult, proxy: Proxy, seconds: float) -> None:
    """Have the proxy pass on what is sent from now on."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host.encode("idna").decode()
    authority = f"{host}:{parts.port or _PORTS[parts.scheme]}"
    answer = Wire(made, authority, seconds).ask("CONNECT", authority, proxy.headers)
    if not 200 <= answer.status < 300:
        raise OSError(0, f"it answered {answer.status}")
    made.settimeout(seconds)


def _secured(made: Connected, host: str, who: str, tls: ssl.SSLContext) -> Connected:
    try:
        if isinstance(made, ssl.SSLSocket):
            return TlsWithin(made, host, tls)
        if isinstance(made, socket.socket):
            return tls.wrap_socket(made, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(who, error.verify_message) from None
    raise TypeError("TLS within TLS within TLS")


class TlsWithin:
    """TLS to a server over TLS to a proxy: Python's own sockets don't stack."""

    def __init__(self, outer: ssl.SSLSocket, host: str, tls: ssl.SSLContext) -> None:
        self._outer = outer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._until_done(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            view = view[self._until_done(partial(self._tls.write, view)) :]

    def recv(self, most: int) -> bytes:
        """What has come, at most so much; nothing at the end."""
        try:
            return self._until_done(lambda: self._tls.read(most))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """The same into memory that is there."""
        found = self.recv(size or len(view))
        view[: len(found)] = found
        return len(found)

    def settimeout(self, seconds: float | None) -> None:
        """The longest wait for a byte."""
        self._outer.settimeout(seconds)

    def close(self) -> None:
        """End both connections."""
        self._outer.close()

    def _until_done(self, act: Callable[[], T]) -> T:
        """Do it, and bring to and fro what it needs for that."""
        while True:
            try:
                done = act()
            except ssl.SSLWantReadError:
                self._send()
                received = self._outer.recv(_READ_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                self._send()
                return done

    def _send(self) -> None:
        if self._outgoing.pending:
            self._outer.sendall(self._outgoing.read())
