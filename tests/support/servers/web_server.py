"""A web server over TLS that keeps files as web servers do: more or less of what HTTP says, and sometimes wrong."""

from __future__ import annotations

import functools
import hashlib
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from tests.support.servers.hub import FaultyHandler, HttpFault, SeenRequest, listen, next_fault_for

STRONG, WEAK, MODIFIED, NOTHING = "strong", "weak", "modified", "nothing"
"""What a server tells that identifies content."""


@dataclass(frozen=True)
class WebPage:
    """One file. ``version`` counts its changes; ``headers`` come on top."""

    content: bytes
    version: int = 1
    headers: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'

    def identity(self, tells: str) -> dict[str, str]:
        """The headers that identify it."""
        tag = self.tag
        date = f"Mon, 06 Jan 2025 10:{self.version:02}:00 GMT"
        known = {STRONG: {"ETag": tag}, WEAK: {"ETag": f"W/{tag}"}, MODIFIED: {}, NOTHING: {}}
        dated = {} if tells == NOTHING else {"Last-Modified": date}
        return {**known[tells], **dated}


@dataclass
class WebServer:
    """The server's state; change it from the test at any time.

    What lies below ``/closed/`` needs the token. ``head`` is the status of HEAD requests if they
    fail, ``tells_length`` whether there is a Content-Length.
    """

    tells: str = STRONG
    ranges: bool = True
    head: int | None = None
    tells_length: bool = True
    token: str = "t" * 30
    pages: dict[str, WebPage] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    faults: list[HttpFault] = field(default_factory=list)
    seen: list[SeenRequest] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, path: str, content: bytes) -> str:
        """Put a file at a path, in the place of what was there; its URL."""
        before = self.pages.get(path, WebPage(b"", 0))
        self.pages[path] = WebPage(content, before.version + 1)
        return f"{self.url}{quote(path)}"

    def change(self, path: str, headers: Mapping[str, str]) -> None:
        """Other headers for a file that stays as it is."""
        self.pages[path] = replace(self.pages[path], headers=dict(headers))

    def forget(self) -> None:
        """Forget what was asked so far."""
        self.seen.clear()
        self.asked.clear()


class _Handler(FaultyHandler):
    web: WebServer

    def _any(self) -> None:
        web, parts = self.web, urlsplit(self.path)
        path, bearer = unquote(parts.path), f"Bearer {web.token}"
        with web.lock:
            host = self.headers["Host"]
            web.seen.append(SeenRequest(path, parts.query, dict(self.headers), host))
            web.asked.append(f"{self.command} {path}")
            fault = None if self.command == "HEAD" else next_fault_for(web.faults, path)
        if self.command == "HEAD" and web.head is not None:
            self.answer(web.head, b"")
        elif fault and fault.kind == "status":
            self.answer(fault.status, fault.body, fault.headers)
        elif path in web.redirects:
            self.answer(302, b"", {"Location": web.redirects[path]})
        elif path.startswith("/closed/") and self.headers.get("Authorization") != bearer:
            self.answer(401, b"")
        elif path in web.pages:
            self._page(web.pages[path], fault)
        else:
            self.answer(404, b"")

    do_GET = do_HEAD = _any  # noqa: N815  the names are the library's

    def _page(self, page: WebPage, fault: HttpFault | None) -> None:
        web, identity = self.web, page.identity(self.web.tells)
        headers = {"Content-Type": "application/octet-stream", **identity, **page.headers}
        wanted = self.headers.get("If-Range")
        fits = wanted in (None, headers.get("ETag")) and not (wanted or "").startswith("W/")
        if not web.tells_length:
            self._chunked(page.content, headers)
        elif "Range" in self.headers and web.ranges and not page.content:
            self.answer(416, b"", {"Content-Range": "bytes */0"})
        else:
            self.part(page.content, headers, fault, ranges=web.ranges and fits)

    def _chunked(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))


@contextmanager
def serve_web(tls: ssl.SSLContext) -> Iterator[WebServer]:
    running = WebServer()
    handler = type("Handler", (_Handler,), {"web": running, "closing": running.closing})
    with listen(handler, tls) as running.url:
        yield running
