"""One streaming request, as weights need it: fast, bounded, and careful about who gets the credential."""

from __future__ import annotations

import contextlib
import ssl
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Dict, List, Tuple, TypeVar
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from trainctl.base.certificates import trusting
from trainctl.base.flow import TooSlow
from trainctl.errors import SourceBusy, SourceCut, SourceError, SourceResting, SourceUnreachable
from trainctl.weights.sources.connecting import Untrusted, connect
from trainctl.weights.sources.gates import gate_of
from trainctl.weights.sources.proxies import Proxy, proxy_for
from trainctl.weights.sources.statuses import error_for
from trainctl.weights.sources.wire import Answer, Malformed, Wire

T = TypeVar("T")
R = TypeVar("R")
PIECE_BYTES = 2**20
_PAUSING = {429, 503}
_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 10
_CONNECT_SECONDS = 5.0
_Idle = Dict[Tuple[str, str], List[Wire]]
_CHECK_NETWORK = "Check the network and, behind a proxy, HTTPS_PROXY."
_IN_URLS = "!#$%&'()*+,/:;=?@[]~"
"""What quoting leaves as it is: everything that means something in a URL, and what is quoted already."""


class Redirected(SourceError):
    """A server sends on who may not go there."""

    usual_code = "unsafe-redirect"


class Response:
    """A successful answer whose body has not been read yet."""

    def __init__(self, raw: Answer, what: str, url: str) -> None:
        self.status = raw.status
        self.headers = raw.headers
        self.url = url
        self._raw = raw
        self._what = what

    def pieces(self) -> Iterator[bytes]:
        """The body in pieces of at most 1 MiB; SourceCut when it ends before its announced length."""
        while not self._raw.ended:
            piece = self._took(self._raw.read, PIECE_BYTES)
            if piece:
                yield piece
            elif self._raw.left:
                raise self._early()

    def fill(self, view: memoryview) -> None:
        """The next bytes of the body, as many as the view takes; SourceCut when they don't come."""
        if self._took(self._raw.readinto, view) < len(view):
            raise self._early()

    def _took(self, take: Callable[[T], R], wanted: T) -> R:
        try:
            return take(wanted)
        except TooSlow as error:
            raise SourceCut(
                f"{self._what}: the server fell silent amid the body, or sends hardly anything ({error})"
            ) from None
        except TimeoutError:
            raise SourceCut(f"{self._what}: the server fell silent amid the body") from None
        except OSError as error:
            raise SourceCut(f"{self._what}: the connection broke ({_said(error)})") from None

    def _early(self) -> SourceCut:
        missing = f"{self._raw.left} bytes early" if self._raw.left else "early"
        return SourceCut(f"{self._what}: the body ended {missing}")

    def read(self, limit: int) -> bytes:
        """The whole body; SourceError when it is longer than the limit in bytes."""
        parts, size = [], 0
        for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise SourceError(f"{self._what}: the answer is longer than {limit} bytes")
            parts.append(piece)
        return b"".join(parts)


class HttpClient:
    """Keeps connections for the next request; safe to use from many threads. ``silence`` is in seconds; ``direct`` uses no proxy."""

    def __init__(self, silence: float = 30.0, *, direct: bool = False) -> None:
        self._silence = silence
        self._connecting = min(silence, _CONNECT_SECONDS)
        self._direct = direct
        self._lock = threading.Lock()
        self._idle: _Idle = defaultdict(list)
        self._proxies: dict[tuple[str, str], Proxy | None] = {}
        weakref.finalize(self, _close, self._idle)

    @contextlib.contextmanager
    def get(
        self,
        url: str,
        what: str,
        headers: Mapping[str, str],
        token: str | None = None,
        method: str = "GET",
        *,
        signed: bool = False,
    ) -> Iterator[Response]:
        """GET, or HEAD, redirects followed. ``what`` names the thing in errors, which never show the URL itself.

        The token goes to the URL's own scheme, host and port only. What is ``signed`` goes nowhere else: Redirected says where it should.
        """
        home = _origin(urlsplit(url))
        asked: set[str] = set()
        while len(asked) <= _MOST_REDIRECTS:
            if url in asked:
                raise SourceError(f"{what}: its redirects go in a circle", code="unsafe-redirect")
            asked.add(url)
            parts = urlsplit(url)
            if _origin(parts) != home:
                token = None
            sent = dict(headers)
            if token is not None:
                sent["Authorization"] = f"Bearer {token}"
            with self._exchange(method, parts, sent, what) as raw:
                if raw.status in _REDIRECTS:
                    url = _next(url, raw, what)
                    if signed:
                        raise _sent_on(what, parts, url)
                    continue
                if raw.status >= 300:
                    raise _refusal(raw, parts, what, token, self._proxy(parts))
                yield Response(raw, what, url)
                return
        raise _too_many(what)

    def elsewhere(self, url: str, what: str, headers: Mapping[str, str], token: str) -> str | None:
        """Where a HEAD leads that leaves the URL's scheme, host and port; None where these answer themselves."""
        home = _origin(urlsplit(url))
        sent = {**headers, "Authorization": f"Bearer {token}"}
        for _ in range(_MOST_REDIRECTS):
            parts = urlsplit(url)
            if _origin(parts) != home:
                return url
            with self._exchange("HEAD", parts, sent, what) as raw:
                if raw.status not in _REDIRECTS:
                    if raw.status >= 300:
                        raise _refusal(raw, parts, what, token, self._proxy(parts))
                    return None
                url = _next(url, raw, what)
        raise _too_many(what)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, parts: SplitResult, headers: Mapping[str, str], what: str
    ) -> Iterator[Answer]:
        with gate_of(parts).passed(what, host_of(parts)):
            wire, raw = self._request(method, parts, headers, what)
            try:
                yield raw
            finally:
                self._put_back(parts, wire, raw)

    def _request(
        self, method: str, parts: SplitResult, headers: Mapping[str, str], what: str
    ) -> tuple[Wire, Answer]:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = self._proxy(parts)
        if proxy and parts.scheme == "http":
            target = f"http://{parts.netloc}{target}"
            headers = {**headers, **proxy.headers}
        while True:
            with self._lock:
                kept = self._idle[_origin(parts)]
                wire = kept.pop() if kept else None
            fresh = wire is None
            try:
                wire = wire or self._connect(parts)
                return wire, wire.ask(method, target, {"Accept-Encoding": "identity", **headers})
            except TimeoutError:
                self._close(wire)
                seconds = self._silence if wire else self._connecting
                raise SourceUnreachable(
                    f"{what}: {_through(parts, proxy)} did not answer within {seconds:.0f} s",
                    proxy.advice if proxy else "",
                ) from None
            except Untrusted as error:
                raise SourceError(
                    f"{what}: the certificate of {error.who} is not trusted ({error.why})",
                    "Name the certificates to trust in SSL_CERT_FILE.",
                    code="untrusted-certificate",
                ) from None
            except OSError as error:
                self._close(wire)
                if fresh:
                    made = SourceCut if wire else SourceUnreachable
                    raise made(
                        f"{what}: can't reach {_through(parts, proxy)} ({_said(error)})",
                        proxy.advice if proxy else _CHECK_NETWORK,
                    ) from None

    def _connect(self, parts: SplitResult) -> Wire:
        connected = connect(parts, self._proxy(parts), lambda: self._tls, self._connecting)
        return Wire(connected, _host_header(parts), self._silence)

    def _proxy(self, parts: SplitResult) -> Proxy | None:
        """What the environment says, looked up once for each host."""
        where = _origin(parts)
        if where not in self._proxies:
            self._proxies[where] = None if self._direct else proxy_for(parts)
        return self._proxies[where]

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return trusting()

    def _put_back(self, parts: SplitResult, wire: Wire, raw: Answer) -> None:
        """A connection is used again only when its answer was read to the end."""
        if raw.reusable:
            with self._lock:
                self._idle[_origin(parts)].append(wire)
        else:
            wire.close()

    def _close(self, wire: Wire | None) -> None:
        if wire is not None:
            wire.close()


def _through(parts: SplitResult, proxy: Proxy | None) -> str:
    return f"{host_of(parts)} through {proxy.shown}" if proxy else host_of(parts)


def _refusal(
    raw: Answer, parts: SplitResult, what: str, token: str | None, proxy: Proxy | None
) -> SourceError:
    """The error that an answer means. A server that asks for a pause gets one from everybody, and it is told once."""
    if raw.status == 407 and proxy:
        summary = f"{what}: {proxy.shown} wants a login (407)"
        return SourceError(summary, proxy.advice, code="unusable-proxy")
    error = error_for(raw.status, raw.headers, what, host_of(parts), token)
    if not isinstance(error, SourceBusy) or raw.status not in _PAUSING:
        return error
    if gate_of(parts).pause(error.retry_after):
        return error
    return SourceResting(error.summary, error.detail, retry_after=error.retry_after)


def _sent_on(what: str, asked: SplitResult, url: str) -> Redirected:
    there = host_of(urlsplit(url))
    return Redirected(
        f"{what}: {host_of(asked)} sends on to {there}",
        "What is asked for with a signature is not asked for there. If that is the server, name it.",
    )


def _too_many(what: str) -> SourceError:
    return SourceError(f"{what}: more than {_MOST_REDIRECTS} redirects", code="unsafe-redirect")


def host_of(parts: SplitResult) -> str:
    """Host and port as people write them, without the user and password that a URL may hold."""
    return parts.netloc.rpartition("@")[2]


def _close(idle: _Idle) -> None:
    for wire in chain.from_iterable(idle.values()):
        wire.close()


def _host_header(parts: SplitResult) -> str:
    host = host_of(parts)
    usual = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    if usual and host.endswith(usual):
        host = host[: -len(usual)]
    return host if host.isascii() else host.encode("idna").decode()


def _origin(parts: SplitResult) -> tuple[str, str]:
    return parts.scheme, parts.netloc.lower()


def quoted(url: str | bytes) -> str:
    """The URL as a request can hold it: spaces and what is not ASCII as percent-encoded UTF-8."""
    return quote(url, safe=_IN_URLS)


def _next(url: str, raw: Answer, what: str) -> str:
    location = raw.headers.get("Location")
    if not location:
        raise SourceError(f"{what}: a redirect to nowhere", code="unsafe-redirect")
    target = led_to(url, location, f"{what}: a redirect")
    if (raw.left or 0) <= PIECE_BYTES:
        with contextlib.suppress(OSError):
            raw.read(PIECE_BYTES)
    return target


def led_to(url: str, reference: str, what: str) -> str:
    """The URL that a header of its answer names. SourceError for one that isn't to be asked; ``what`` it is begins that."""
    try:
        # Headers are read as Latin-1 whatever they are: the same bytes go into the next request.
        target = quoted(urljoin(url, reference).encode("latin-1"))
        parts = urlsplit(target)
        is_url = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise SourceError(f"{what} to what is no URL", code="unsafe-redirect")
    now = urlsplit(url).scheme
    if parts.scheme not in (("https",) if now == "https" else ("http", "https")):
        raise SourceError(f"{what} from {now} to something less safe", code="unsafe-redirect")
    return target


def _said(error: Exception) -> str:
    if isinstance(error, Malformed):
        return str(error)
    reason = getattr(error, "strerror", None)
    return reason or type(error).__name__
