"""URLs by which a host downloads a source: presigned, or of a relay on the client."""

from __future__ import annotations

import contextlib
import hmac
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from secrets import token_urlsafe
from typing import Any

from trainctl.base.listing import ResolvedSource, SourceFile, file_index
from trainctl.base.retry import RetryPolicy
from trainctl.errors import (
    SourceError,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    TrainctlError,
)
from trainctl.remote.agent import NodeAgent
from trainctl.store.ingestion.upstream import Upstream

_AT_ONCE = 8
_PATH = re.compile(r"/([0-9]{1,12})")
_RANGE = re.compile(r"bytes=(\d+)-")
_TIMEOUT_SECONDS = 60.0
OpenFile = Callable[[SourceFile, int], AbstractContextManager[Iterator[bytes]]]
"""Open a file at an offset; see Upstream."""


class Relay(ThreadingHTTPServer):
    """Serves the files of a source on loopback to clients with the token."""

    daemon_threads = True

    def __init__(self, token: str, files: Sequence[SourceFile], open_file: OpenFile) -> None:
        super().__init__(("127.0.0.1", 0), _RelayRequestHandler)
        self.token = token
        self.files = files
        self.open_file = open_file
        self.error: TrainctlError | None = None
        """The last error that retries can't fix; the host gets only its status code."""

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.server_address[1])

    def find(self, path: str) -> SourceFile | None:
        """Return the file of a path, ``/NUMBER``."""
        match = _PATH.fullmatch(path)
        number = int(match[1]) if match else len(self.files)
        return self.files[number] if number < len(self.files) else None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore hosts that disconnect."""


class _RelayRequestHandler(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS
    disable_nagle_algorithm = True  # otherwise small files wait 40 ms for a TCP acknowledgement

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Send a file from the requested offset on."""
        authorization = self.headers.get("Authorization") or ""
        file = self.server.find(self.path)
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.server.token}".encode()):
            self._send_empty(403)
        elif file is None:
            self._send_empty(404)
        else:
            match = _RANGE.fullmatch(self.headers.get("Range") or "")
            self._send(file, int(match[1]) if match else 0)

    def _send(self, file: SourceFile, offset: int) -> None:
        try:
            with self.server.open_file(file, offset) as buffers:
                self._start(file, offset)
                for buffer in buffers:
                    self.wfile.write(buffer)
        except TrainctlError as error:
            if not error.retryable:
                self.server.error = error
            self.close_connection = True
            if not self._has_started:
                self._send_empty(_status(error), _retry_headers(error))

    _has_started = False

    def _start(self, file: SourceFile, offset: int) -> None:
        self._has_started = True
        self.send_response(206 if offset else 200)
        self.send_header("Content-Length", str(file.size - offset))
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{file.size - 1}/{file.size}")
        self.end_headers()

    def _send_empty(self, status: int, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _status(error: TrainctlError) -> int:
    if error.retryable:
        return 503
    kinds: dict[type[TrainctlError], int] = {SourceNotFound: 404, SourceMismatch: 412}
    return kinds.get(type(error), 403)


def _retry_headers(error: TrainctlError) -> dict[str, str]:
    """Pass on the upstream's Retry-After."""
    seconds = error.retry_after if isinstance(error, SourceUnavailable) else None
    return {"Retry-After": str(ceil(seconds))} if seconds else {}


@contextlib.contextmanager
def run_relay(token: str, files: Sequence[SourceFile], open_file: OpenFile) -> Iterator[Relay]:
    """Run a relay for the duration of the block."""
    relay = Relay(token, files, open_file)
    thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()


Register = Callable[[str], str]
"""Redact a value in all output, and return it."""


class SourceUrlProvider:
    """Returns URLs of the files of one source to a host; a context manager.

    ``register`` redacts signatures; setting ``ended`` ends retries.
    """

    def __init__(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        agent: NodeAgent,
        register: Register,
        retry: RetryPolicy,
        ended: threading.Event,
    ) -> None:
        self._resolved = resolved
        self._upstream = upstream
        self._agent = agent
        self._register = register
        self._retry = retry
        self._ended = ended
        self._lock = threading.Lock()
        self._relay: tuple[Relay, int] | None = None
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="presigned_url")
        self._stack = ExitStack()

    def __enter__(self) -> SourceUrlProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    @property
    def relay_error(self) -> TrainctlError | None:
        """The error that kept the relay from sending a file."""
        return self._relay[0].error if self._relay else None

    def response(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the URLs of the requested paths; SourceError for any other request."""
        if request.get("method") != "links":
            raise SourceError(f"unexpected request from a host: {request.get('method')!r}")
        numbers = [self._number(path) for path in request["paths"]]
        return {"links": list(self._pool.map(self._file_url, numbers))}

    def _number(self, path: str) -> int:
        files = self._resolved.files
        number = file_index(files, path)
        if number == len(files) or files[number].path != path:
            raise SourceError(f"{self._resolved.source} has no file {path!r} that a host may read")
        return number

    def _file_url(self, number: int) -> dict[str, Any]:
        file = self._resolved.files[number]
        presigned_url = getattr(self._upstream, "presigned_url", None)
        url = self._retry.run(lambda: presigned_url(file), self._ended) if presigned_url else None
        if url is None:
            relay, port = self._open_relay()
            url = f"http://127.0.0.1:{port}/{number}"
            return {"url": url, "token": relay.token, "relayed": True}
        query = url.partition("?")[2]
        if query:
            self._register(query)
        return {"url": url}

    def _open_relay(self) -> tuple[Relay, int]:
        with self._lock:
            if self._relay is None:
                token = self._register(token_urlsafe(32))
                running = run_relay(token, self._resolved.files, self._upstream.open)
                relay = self._stack.enter_context(running)
                self._relay = relay, self._stack.enter_context(self._agent.expose(relay.port))
            return self._relay
