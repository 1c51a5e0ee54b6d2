"""Connections: direct or through the proxy that the environment names, plain or TLS, and watched for silence."""

from __future__ import annotations

import http.client
import io
import socket
import time
from base64 import b64encode
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional
from urllib.parse import SplitResult, unquote, urlsplit

from trainctl.base.http.errors import UnusableProxy
from trainctl.base.http.urls import PORTS
from trainctl.base.throughput import ThroughputMonitor

_BUFFER_BYTES = 2**16
TlsWrapper = Callable[[socket.socket, str], socket.socket]
"""Wraps a connected socket in TLS to the host of that name."""


class Proxy(NamedTuple):
    """An HTTP proxy. ``headers`` log in there; ``variable`` is the environment variable that names it."""

    host: str
    port: int
    headers: Mapping[str, str]
    variable: str

    @property
    def shown(self) -> str:
        """For messages, without its password."""
        return f"the proxy {self.host}:{self.port}"

    @property
    def advice(self) -> str:
        """What to check if it does not answer."""
        return (
            f"{self.variable} names it; write http://USER:PASSWORD@HOST:PORT for a proxy that requires a login. "
            "Hosts in NO_PROXY are reached without it."
        )


class HttpConnection(http.client.HTTPConnection):
    """A connection to a server or its proxy. ``throughput`` fails responses that trickle."""

    def __init__(
        self,
        parts: SplitResult,
        proxy: Optional[Proxy],
        secure: Optional[TlsWrapper],
        connect_seconds: float,
        silence: float,
    ) -> None:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        where = (proxy.host, proxy.port) if proxy else (host, port)
        super().__init__(*where, timeout=connect_seconds)
        self.default_port = PORTS[parts.scheme]
        self.throughput = ThroughputMonitor(silence)
        self._silence = silence
        self._secure = secure
        if proxy and secure:
            self.set_tunnel(host, port, dict(proxy.headers))
        self._name = host
        self.response_class: Any = self._response

    def connect(self) -> None:
        """Connect, through a tunnel if there is a proxy, with TLS if there is any."""
        try:
            super().connect()
            if self._secure is not None:
                self.sock = self._secure(self.sock, self._name)
        except BaseException:
            self.close()
            raise
        self.sock.settimeout(self._silence)

    def set_read_timeout(self, seconds: float) -> None:
        """The longest wait for a byte from now on, and for the head of a response."""
        if seconds != self._silence:
            self._silence, self.throughput = seconds, ThroughputMonitor(seconds)
            self.sock.settimeout(seconds)

    def shutdown(self) -> None:
        """Wake the thread that waits for this connection, from another thread."""
        sock = self.sock
        if sock is not None:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's: its state is that thread's

    def _response(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
        watched: Any = _MonitoredSocket(sock, self.throughput)
        return http.client.HTTPResponse(watched, **options)


class _MonitoredSocket:
    """What HTTPResponse needs of a socket."""

    def __init__(self, sock: socket.socket, throughput: ThroughputMonitor) -> None:
        self._sock = sock
        self._flow = throughput

    def makefile(self, mode: str) -> io.BufferedReader:
        raw = self._sock.makefile(mode, buffering=0)  # type: ignore[call-overload]
        return io.BufferedReader(_MonitoredReader(raw, self._flow), _BUFFER_BYTES)


class _MonitoredReader(io.RawIOBase):
    """Reads of a socket, timed. StalledError if too little comes."""

    def __init__(self, raw: io.RawIOBase, throughput: ThroughputMonitor) -> None:
        self._raw = raw
        self._flow = throughput

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        self._flow.record(count or 0, time.monotonic() - began)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def proxy_for(parts: SplitResult) -> Optional[Proxy]:
    """The proxy for a URL: HTTPS_PROXY or HTTP_PROXY, else ALL_PROXY, unless NO_PROXY names the host.

    UnusableProxy if that is not an HTTP proxy; the message shows no value, as it may hold a password.
    """
    import urllib.request  # slow to import, and few clients use proxies

    if urllib.request.proxy_bypass(parts.netloc):
        return None
    named = urllib.request.getproxies()
    kind = parts.scheme if parts.scheme in named else "all"
    return _parse_proxy(named[kind], f"{kind.upper()}_PROXY") if kind in named else None


def _parse_proxy(text: str, variable: str) -> Proxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or parts.scheme != "http":
        known = parts.scheme if host and parts.scheme.startswith(("socks", "https")) else ""
        problem = f"a {known} proxy, which is not supported" if known else "an invalid proxy URL"
        raise UnusableProxy(
            f"{variable} names {problem}",
            "Write http://HOST:PORT there, or list the hosts to reach without a proxy in NO_PROXY.",
        )
    return Proxy(host, port or PORTS["http"], _login(parts), variable)


def _login(parts: SplitResult) -> Dict[str, str]:
    if not parts.username:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}
