"""HTTP connections, direct or through a proxy, that detect stalled responses and parse headers without ``email``.

Its parser takes a third of the time of a request for a small file.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from base64 import b64encode
from typing import Any, Callable, Dict, Mapping, Optional
from urllib.parse import SplitResult, unquote, urlsplit

from trainctl.base.http.urls import PORTS
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.network.http_errors import UnusableProxy
from trainctl.base.throughput import ThroughputMonitor

_BUFFER_BYTES = 2**16
_MAX_LINE = 2**16
_MAX_HEADERS = 100
_CONTINUE = 100
_LENGTH_DIGITS = 19
_NO_BODY = (204, 304)
TlsWrapper = Callable[[socket.socket, str], socket.socket]
"""Wraps a connected socket in TLS to the host of that name."""


class Proxy(NamedTuple):
    """An HTTP proxy, its login headers, and the environment variable naming it."""

    host: str
    port: int
    headers: Mapping[str, str]
    variable: str

    @property
    def shown(self) -> str:
        """The proxy for messages, without its password."""
        return f"the proxy {self.host}:{self.port}"

    @property
    def advice(self) -> str:
        """The remedy if the proxy doesn't respond."""
        return f"Check {self.variable}; use http://USER:PASSWORD@HOST:PORT for a proxy that requires a login. List hosts to reach without it in NO_PROXY."


class HttpConnection(http.client.HTTPConnection):
    """A connection to a server or its proxy; ``throughput`` fails slow responses."""

    def __init__(
        self,
        parts: SplitResult,
        proxy: Optional[Proxy],
        secure: Optional[TlsWrapper],
        connect_seconds: float,
        read_timeout: float,
    ) -> None:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        address = (proxy.host, proxy.port) if proxy else (host, port)
        super().__init__(*address, timeout=connect_seconds)
        self.default_port = PORTS[parts.scheme]
        self.throughput = ThroughputMonitor(read_timeout)
        self._read_timeout = read_timeout
        self._secure = secure
        if proxy and secure:
            self.set_tunnel(host, port, dict(proxy.headers))
        self._name = host
        self.response_class: Any = self._response

    def connect(self) -> None:
        """Connect, through the proxy's tunnel and with TLS if there are any."""
        try:
            super().connect()
            if self._secure is not None:
                self.sock = self._secure(self.sock, self._name)
        except BaseException:
            self.close()
            raise
        self.sock.settimeout(self._read_timeout)

    def set_read_timeout(self, seconds: float) -> None:
        """Set the longest wait for a byte and for the head of a response."""
        if seconds != self._read_timeout:
            self._read_timeout, self.throughput = seconds, ThroughputMonitor(seconds)
            self.sock.settimeout(seconds)

    def shutdown(self) -> None:
        """Wake the thread that waits for this connection, from another thread."""
        sock = self.sock
        if sock is not None:
            # the plain socket's: the state of TLS belongs to that thread
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _response(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
        monitored: Any = _MonitoredSocket(sock, self.throughput)
        return FastResponse(monitored, **options)


class _MonitoredSocket:
    """The part of a socket that HTTPResponse uses."""

    def __init__(self, sock: socket.socket, throughput: ThroughputMonitor) -> None:
        self._sock = sock
        self._throughput = throughput

    def makefile(self, mode: str) -> io.BufferedReader:
        raw = self._sock.makefile(mode, buffering=0)  # type: ignore[call-overload]
        return io.BufferedReader(_MonitoredReader(raw, self._throughput), _BUFFER_BYTES)


class _MonitoredReader(io.RawIOBase):
    """Timed reads of a socket; StalledError if too few bytes arrive."""

    def __init__(self, raw: io.RawIOBase, throughput: ThroughputMonitor) -> None:
        self._raw = raw
        self._throughput = throughput

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        self._throughput.record(count or 0, time.monotonic() - began)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def proxy_for(parts: SplitResult) -> Optional[Proxy]:
    """Return the proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY; see NO_PROXY.

    UnusableProxy if it is not an HTTP proxy; the message hides the value, which may contain a password.
    """
    import urllib.request  # slow to import, and few clients use proxies

    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if kind not in proxies:
        return None
    text, variable = proxies[kind], f"{kind.upper()}_PROXY"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or parts.scheme != "http":
        scheme = parts.scheme if host and parts.scheme.startswith(("socks", "https")) else ""
        problem = f"a {scheme} proxy, which is not supported" if scheme else "an invalid proxy URL"
        raise UnusableProxy(
            f"{variable} names {problem}",
            "Use http://HOST:PORT, or list the hosts to reach without a proxy in NO_PROXY.",
        )
    headers = {}
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    return Proxy(host, port or PORTS["http"], headers, variable)


class Headers(Dict[str, str]):
    """Response headers by lower-case name, first value only; ``get`` takes any case."""

    def get(self, name: str, default: Optional[str] = None) -> Optional[str]:  # type: ignore[override]
        """Return the value of a header."""
        return super().get(name.lower(), default)


class FastResponse(http.client.HTTPResponse):
    """``http.client.HTTPResponse`` with ``Headers``."""

    def begin(self) -> None:
        """Read status line and headers; see the base class."""
        raw: Any = self  # attributes without type declarations
        if raw.headers is not None:
            return
        status = _CONTINUE
        while status == _CONTINUE:
            version, status, reason = raw._read_status()
            headers = _read_headers(raw.fp)
        raw.code = raw.status = status
        raw.reason = reason.strip()
        raw.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        raw.headers = raw.msg = headers
        raw.chunked = (headers.get("Transfer-Encoding") or "").lower() == "chunked"
        raw.chunk_left = None
        length = headers.get("Content-Length") or ""
        raw.length = (
            int(length)
            if length.isdecimal() and len(length) < _LENGTH_DIGITS and not raw.chunked
            else None
        )
        if status in _NO_BODY or status < 200 or raw._method == "HEAD":
            raw.length = 0
        raw.will_close = raw._check_close() or (not raw.chunked and raw.length is None)


def _read_headers(stream: Any) -> Headers:
    headers = Headers()
    for _ in range(_MAX_HEADERS + 1):
        line = stream.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise http.client.LineTooLong("header line")
        if line in (b"\r\n", b"\n", b""):
            return headers
        name, _, value = line.decode("latin-1").partition(":")
        headers.setdefault(name.lower(), value.strip())
    raise http.client.HTTPException(f"got more than {_MAX_HEADERS} headers")
