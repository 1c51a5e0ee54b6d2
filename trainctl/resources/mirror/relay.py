"""Serve to a host the files that only the operator may read: over HTTP, through the host's own connection."""

from __future__ import annotations

import contextlib
import hmac
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceMismatch, SourceNotFound, SourceUnavailable, TrainctlError

_PATH = re.compile(r"/([0-9]{1,12})")
_RANGE = re.compile(r"bytes=(\d+)-")
_SILENCE_SECONDS = 60.0
OpenFile = Callable[[SourceFile, int], AbstractContextManager[Iterator[bytes]]]
"""Opens a file at an offset, as an Upstream does."""


class Relay(ThreadingHTTPServer):
    """Serves single files of a source on loopback to clients that have the token."""

    daemon_threads = True

    def __init__(self, token: str, files: Sequence[SourceFile], open_file: OpenFile) -> None:
        super().__init__(("127.0.0.1", 0), _RelayRequestHandler)
        self.token = token
        self.files = files
        self.open_file = open_file
        self.error: TrainctlError | None = None
        """The last error that a retry doesn't help: the host only learns its kind."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def path_of(self, number: int) -> str:
        """The path of the file with that number."""
        return f"/{number}"

    def find(self, path: str) -> SourceFile | None:
        """The file that is served at a path."""
        named = _PATH.fullmatch(path)
        number = int(named[1]) if named else len(self.files)
        return self.files[number] if number < len(self.files) else None

    def handle_error(self, request: object, client_address: object) -> None:
        """Report nothing when a host goes away."""


class _RelayRequestHandler(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_SECONDS
    # Else a small file waits for the receipt of its headers, 40 ms each.
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """The rest of one file, from the offset that is asked for."""
        given = self.headers.get("Authorization") or ""
        file = self.server.find(self.path)
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self._send_empty(403)
        elif file is None:
            self._send_empty(404)
        else:
            asked = _RANGE.fullmatch(self.headers.get("Range") or "")
            self._send(file, int(asked[1]) if asked else 0)

    def _send(self, file: SourceFile, offset: int) -> None:
        try:
            with self.server.open_file(file, offset) as pieces:
                self._start(file, offset)
                for piece in pieces:
                    self.wfile.write(piece)
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
    """The host waits as long as upstream asks for, and not as long as it thinks right."""
    asked = error.retry_after if isinstance(error, SourceUnavailable) else None
    return {"Retry-After": str(ceil(asked))} if asked else {}


@contextlib.contextmanager
def run_relay(token: str, files: Sequence[SourceFile], open_file: OpenFile) -> Iterator[Relay]:
    """Serve until the block ends."""
    relay = Relay(token, files, open_file)
    thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()
