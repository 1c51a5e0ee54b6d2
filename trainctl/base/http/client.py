"""HTTP requests over pooled connections, with streamed responses."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import weakref
from collections import defaultdict
from functools import cached_property
from typing import (  # fmt: skip
    TYPE_CHECKING,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Set,
    Tuple,
    Union,
    cast,
)
from urllib.parse import SplitResult, urlsplit

from trainctl.base.http.connection import Headers, HttpConnection, Proxy, proxy_for
from trainctl.base.http.limits import HostLimits
from trainctl.base.http.urls import Origin, host_of, origin_of, resolve_reference
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.http_errors import (
    HttpError,
    HttpInterrupted,
    HttpStalled,
    HttpUnreachable,
    UnsafeRedirect,
    UnusableProxy,
)
from trainctl.base.throughput import StalledError

if TYPE_CHECKING:
    import ssl  # slow to import, and some builds of Python lack it

BUFFER_BYTES = 2**20
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 10
_DRAINED_BYTES = 2**16  # reading more of an unwanted body takes longer than another connection
"""Longest body of a redirect that is read to reuse its connection."""
_LENGTH = compile_lazily(r"[0-9]{1,18}")
_CHECK_NETWORK = "Check the network and, behind a proxy, HTTPS_PROXY."
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)
_TIMEOUTS = (socket.timeout, TimeoutError)  # two classes before Python 3.10
Body = Union[bytes, Iterable[bytes]]
_Idle = Dict[Origin, List[HttpConnection]]


class Response:
    """A response with an unread body; valid within the ``with`` of its request."""

    def __init__(
        self, raw: http.client.HTTPResponse, url: str, relocate: Callable[[str], str] = str
    ) -> None:
        self._raw = raw
        self._relocate = relocate
        self.url = url
        self.status = raw.status
        self.headers = cast(Headers, raw.headers)
        if not _LENGTH.fullmatch(self.headers.get("Content-Length") or "0"):
            raise HttpInterrupted("the server sends an invalid Content-Length")

    @property
    def redirect(self) -> Optional[str]:
        """The redirect URL, if any; UnsafeRedirect if it must not be followed."""
        if self.status not in _REDIRECTS:
            return None
        location = self.headers.get("Location")
        if not location:
            raise UnsafeRedirect("a redirect without a location")
        return self._relocate(resolve_reference(self.url, location))

    def read(self, size: int = BUFFER_BYTES) -> bytes:
        """Return the next bytes, empty at the end; HttpInterrupted if cut short."""
        if self._raw.isclosed():
            return b""
        with _body_errors():
            data = self._raw.read(size)
        if not data:
            self._check_complete()
        return data

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the rest of the body, up to 1 MiB at a time."""
        return iter(self.read, b"")

    def fill(self, view: memoryview) -> None:
        """Fill the view from the body; HttpInterrupted if the body is shorter."""
        with _body_errors():
            count = self._raw.readinto(view)
        if count < len(view):
            self._check_complete()
            raise HttpInterrupted("the body ended early")

    def read_all(self, limit: int) -> bytes:
        """Return the rest of the body; HttpError if it is longer than ``limit`` bytes."""
        body = bytearray()
        for data in self.iter_bytes():
            body += data
            if len(body) > limit:
                raise HttpError(f"the response is longer than {limit} bytes")
        return bytes(body)

    def drain(self) -> None:
        """Read a short rest of the body, so that the connection can be reused."""
        if (self._raw.length or 0) <= _DRAINED_BYTES:
            with contextlib.suppress(*_CONNECTION_ERRORS):
                while not self._raw.isclosed() and self._raw.read(_DRAINED_BYTES):
                    pass

    def _check_complete(self) -> None:
        if self._raw.length:
            raise HttpInterrupted(f"the body ended {self._raw.length} bytes early")


class HttpClient:
    """Thread-safe client that reuses connections.

    ``read_timeout``: longest wait for a byte, in seconds. ``pin``: sha256 of the only certificate to accept.
    ``tls``: returns the context for other servers, by default ``client_context``. ``proxies``: use those of the
    environment. ``limits``: limits per host that requests wait for. ``relocate``: changes the URLs of redirects.
    """

    def __init__(
        self,
        *,
        read_timeout: float = 30.0,
        connect_seconds: float = 5.0,
        proxies: bool = True,
        pin: Optional[str] = None,
        tls: Optional[Callable[[], ssl.SSLContext]] = None,
        limits: Optional[HostLimits] = None,
        relocate: Callable[[str], str] = str,
    ) -> None:
        self._read_timeout = read_timeout
        self._connect_seconds = min(read_timeout, connect_seconds)
        self._use_proxies = proxies
        self._pin = pin
        self._make_tls = tls
        self._limits = limits
        self._relocate = relocate
        self._lock = threading.Lock()
        self._idle: _Idle = defaultdict(list)
        self._in_use: Set[HttpConnection] = set()
        self._proxies: Dict[Origin, Optional[Proxy]] = {}
        weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def request(
        self,
        method: str,
        url: str,
        headers: Optional[Mapping[str, str]] = None,
        *,
        secret_headers: Optional[Mapping[str, str]] = None,
        body: Optional[Body] = None,
        follow: bool = True,
        read_timeout: Optional[float] = None,
    ) -> Iterator[Response]:
        """Send a request; HttpError without a response. An error status is a response.

        ``secret_headers`` are sent to the URL's own scheme, host and port only. Requests with a body don't follow
        redirects. ``body`` may be a repeatable iterable; then ``headers`` must hold its Content-Length.
        """
        origin, visited = origin_of(urlsplit(url)), {url}
        while True:
            parts = urlsplit(url)
            all_headers = dict(headers or {})
            if secret_headers and origin_of(parts) == origin:
                all_headers.update(secret_headers)
            else:
                origin = ("", "", 0)  # no credentials after a redirect to another origin and back
            with self._exchange(method, url, all_headers, body, read_timeout) as response:
                target = response.redirect if follow and body is None else None
                if target is None:
                    yield response
                    return
                response.drain()
            if target in visited or len(visited) > _MAX_REDIRECTS:
                raise UnsafeRedirect("redirect loop" if target in visited else "too many redirects")
            visited.add(target)
            url = target

    def abort(self) -> None:
        """Fail all active requests, from another thread."""
        with self._lock:
            busy = list(self._in_use)
        for connection in busy:
            with contextlib.suppress(OSError):
                connection.shutdown()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            _close_all(self._idle)

    @contextlib.contextmanager
    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Optional[Body],
        read_timeout: Optional[float],
    ) -> Iterator[Response]:
        parts = urlsplit(url)
        origin = origin_of(parts)
        with contextlib.ExitStack() as stack:
            if self._limits is not None:
                stack.enter_context(self._limits.of(origin).slot(host_of(parts)))
            connection, raw = self._send(
                method, parts, headers, body, read_timeout or self._read_timeout
            )
            try:
                yield Response(raw, url, self._relocate)
            finally:
                self._release(origin, connection, raw)

    def _send(
        self,
        method: str,
        parts: SplitResult,
        headers: Mapping[str, str],
        body: Optional[Body],
        read_timeout: float,
    ) -> Tuple[HttpConnection, http.client.HTTPResponse]:
        """Send a request, on a new connection if the server closed the idle one."""
        origin = origin_of(parts)
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(parts) if self._use_proxies else None
        proxy = self._proxies[origin]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy and parts.scheme == "http":
            target = f"http://{host_of(parts)}{target}"
            headers = {**headers, **proxy.headers}
        while True:
            with self._lock:
                idle = self._idle[origin]
                connection = idle.pop() if idle else None
            reused = connection is not None
            if connection is None:
                connection = self._connect(parts, proxy)
            with self._lock:
                self._in_use.add(connection)
            try:
                connection.set_read_timeout(read_timeout)
                # a server may refuse a body and close before it has read everything
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sent = {"Accept-Encoding": "identity", **headers}
                    connection.request(method, target, body, sent)
                connection.throughput.require_complete()
                response = connection.getresponse()
                connection.throughput.require_progress()
            except _TIMEOUTS:
                self._discard(connection)
                raise _timeout_error(parts, proxy, read_timeout) from None
            except _CONNECTION_ERRORS as error:
                self._discard(connection)
                if not reused:
                    raise HttpInterrupted(
                        f"{_via_proxy(parts, proxy)}: {error_text(error)}", _CHECK_NETWORK
                    ) from None
            except BaseException:
                self._discard(connection)
                raise
            else:
                return connection, response

    def _connect(self, parts: SplitResult, proxy: Optional[Proxy]) -> HttpConnection:
        secure = self._secure if parts.scheme == "https" else None
        connection = HttpConnection(parts, proxy, secure, self._connect_seconds, self._read_timeout)
        try:
            connection.connect()
        except HttpError:
            raise
        except _TIMEOUTS:
            raise _timeout_error(parts, proxy, self._connect_seconds) from None
        except _CONNECTION_ERRORS as error:
            reason = error_text(error)
            if proxy and "407" in reason:
                raise UnusableProxy(f"{proxy.shown} requires a login (407)", proxy.advice) from None
            raise HttpUnreachable(
                f"cannot reach {_via_proxy(parts, proxy)} ({reason})",
                proxy.advice if proxy else _CHECK_NETWORK,
            ) from None
        return connection

    def _secure(self, sock: socket.socket, host: str) -> socket.socket:
        from trainctl.base.network import tls

        if self._pin is not None:
            return tls.wrap_pinned(sock, self._pin, f"{host} port {sock.getpeername()[1]}")
        return tls.wrap_trusted(sock, self._tls, host)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        from trainctl.base.network.tls import client_context

        return (self._make_tls or client_context)()

    def _release(
        self, origin: Origin, connection: HttpConnection, raw: http.client.HTTPResponse
    ) -> None:
        """Keep the connection if the response was read to the end."""
        if not raw.length and not raw.chunked:
            raw.close()
        if raw.isclosed() and not raw.length and connection.sock is not None:
            with self._lock:
                self._in_use.discard(connection)
                self._idle[origin].append(connection)
        else:
            raw.close()
            self._discard(connection)

    def _discard(self, connection: HttpConnection) -> None:
        with self._lock:
            self._in_use.discard(connection)
        connection.close()


@contextlib.contextmanager
def _body_errors() -> Iterator[None]:
    """Convert errors while a body is read to HttpInterrupted."""
    try:
        yield
    except StalledError as error:
        raise HttpStalled(f"the response body stalled ({error})") from None
    except _TIMEOUTS:
        raise HttpStalled("the response body stalled") from None
    except _CONNECTION_ERRORS as error:
        raise HttpInterrupted(f"the connection broke ({error_text(error)})") from None


def _close_all(idle: _Idle) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
        connections.clear()


def _via_proxy(parts: SplitResult, proxy: Optional[Proxy]) -> str:
    return f"{host_of(parts)} through {proxy.shown}" if proxy else host_of(parts)


def _timeout_error(parts: SplitResult, proxy: Optional[Proxy], seconds: float) -> HttpUnreachable:
    return HttpUnreachable(
        f"{_via_proxy(parts, proxy)} did not respond within {seconds:.0f} s",
        proxy.advice if proxy else "",
    )


def error_text(error: BaseException) -> str:
    """Return the system's text of an error."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
