"""A server of buckets seen through a proxy: counts requests, answers late, loses answers, and serialises conditional writes.

moto checks a condition and writes without a lock, so conditional writes pass one at a time.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.servers.hub import FaultyHandler, listen

_CONDITIONS = ("If-None-Match", "x-goog-if-generation-match")
_OWN = ("connection", "transfer-encoding", "content-length")
"""Headers of the answer that are the proxy's own."""
_BODIES = {
    409: b"<Error><Code>ConditionalRequestConflict</Code></Error>",
    412: b"<Error><Code>PreconditionFailed</Code></Error>",
    400: b"<Error><Code>ExpiredToken</Code></Error>",
    429: b"<Error><Code>TooManyRequests</Code></Error>",
    503: b"<Error><Code>SlowDown</Code></Error>",
}
Fault = str
FAULTS: tuple[Fault, ...] = ("lost", "late", "409", "412", "429", "503", "expired")
"""``lost``: done, and the connection closed. ``late``: the connection closed, done at the next request but one.
``412``: done, and refused by the answer. The others: not done, and that status answered, 400 for an expired token."""


class FaultProxy:
    """``faults`` are what happens to the next conditional writes, ``requests`` counts by method, ``latency`` is in seconds.

    ``encryption`` counts writes by the server-side encryption that they ask for.
    """

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint)
        self.faults: deque[Fault] = deque()
        self.requests: Counter[str] = Counter()
        self.encryption: Counter[str | None] = Counter()
        self.latency = 0.0
        self.decide: Callable[[], Fault | None] = lambda: (
            self.faults.popleft() if self.faults else None
        )
        self.lock = threading.Lock()
        self.delayed: deque[tuple[int, Callable[[], object]]] = deque()
        self.url = ""


@contextmanager
def fault_proxy(endpoint: str) -> Iterator[FaultProxy]:
    """A proxy, for as long as the block lasts."""
    proxy = FaultProxy(endpoint)
    with listen(type("Handler", (_Handler,), {"proxy": proxy})) as url:
        proxy.url = f"{url}{proxy.upstream.path}"
        yield proxy


class _Handler(FaultyHandler):
    proxy: FaultProxy

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._handle()

    def _handle(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lists = self.command == "GET" and ("list-type=" in self.path or "comp=list" in self.path)
        proxy.requests["LIST" if lists else self.command] += 1
        if self.command == "PUT":
            proxy.encryption[self.headers.get("x-amz-server-side-encryption")] += 1
        if proxy.latency:
            time.sleep(proxy.latency)
        is_conditional = self.command == "PUT" and any(map(self.headers.get, _CONDITIONS))
        with proxy.lock:
            _deliver(proxy)
            fault = proxy.decide() if is_conditional else None
            if fault == "late":
                proxy.delayed.append((1, lambda: self._ask(body)))
            held = self._ask(body) if is_conditional and fault in (None, "lost", "412") else None
        if fault in ("lost", "late"):
            self.close_connection = True
            return
        if fault is not None:
            status = 400 if fault == "expired" else int(fault)
            self._answer(status, [], _BODIES[status])
            return
        self._answer(*(held or self._ask(body)))

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = self.proxy.upstream
        connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        values = answer.status, answer.getheaders(), answer.read()
        connection.close()
        return values

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OWN or (self.command == "HEAD" and name == "Content-Length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _deliver(proxy: FaultProxy) -> None:
    """Do what was delayed, each after so many other requests. Requires the lock."""
    for _ in range(len(proxy.delayed)):
        left, act = proxy.delayed.popleft()
        if left:
            proxy.delayed.append((left - 1, act))
        else:
            act()
