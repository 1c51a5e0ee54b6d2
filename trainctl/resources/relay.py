"""Handing bytes to a host that only the operator may read: over HTTP, through the host's own connection."""

from __future__ import annotations

import contextlib
import hmac
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceBusy, SourceGone, SourceWrong, TrainctlError
from trainctl.weights.mirror.afresh import Origin

_PATH = re.compile(r"/([0-9]{1,9})/([0-9]{1,12})")
_RANGE = re.compile(r"bytes=(\d+)-")
_SILENCE_SECONDS = 60.0


class Relay(ThreadingHTTPServer):
    """Serves single files of sources on loopback to who has the token."""

    daemon_threads = True

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.token = token
        self.error: TrainctlError | None = None
        """What went wrong last, and for good: the host only hears of what kind it is."""
        self._lock = threading.Lock()
        self._origins: list[Origin] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def offer(self, origin: Origin, number: int) -> str:
        """Serve a source's files; the path by which the one with that number is asked for."""
        with self._lock:
            if not any(one is origin for one in self._origins):
                self._origins.append(origin)
            source = next(at for at, one in enumerate(self._origins) if one is origin)
        return f"/{source}/{number}"

    def found(self, path: str) -> tuple[Origin, SourceFile] | None:
        """What is served at a path."""
        named = _PATH.fullmatch(path)
        if named is None:
            return None
        source, number = int(named[1]), int(named[2])
        with self._lock:
            origin = self._origins[source] if source < len(self._origins) else None
        if origin is None or number >= len(origin.resolved.files):
            return None
        return origin, origin.resolved.files[number]

    def handle_error(self, request: object, client_address: object) -> None:
        """A host that goes away is nothing to speak of."""


class _Request(BaseHTTPRequestHandler):
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
        found = self.server.found(self.path)
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self._short(403)
        elif found is None:
            self._short(404)
        else:
            asked = _RANGE.fullmatch(self.headers.get("Range") or "")
            self._send(*found, int(asked[1]) if asked else 0)

    def _send(self, origin: Origin, file: SourceFile, offset: int) -> None:
        try:
            with origin.source.open(origin.resolved, file, offset, origin.credential) as pieces:
                self._begin(file, offset)
                for piece in pieces:
                    self.wfile.write(piece)
        except TrainctlError as error:
            if not error.retryable:
                self.server.error = error
            self.close_connection = True
            if not self._begun:
                self._short(_status(error), _waiting(error))

    _begun = False

    def _begin(self, file: SourceFile, offset: int) -> None:
        self._begun = True
        self.send_response(206 if offset else 200)
        self.send_header("Content-Length", str(file.size - offset))
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{file.size - 1}/{file.size}")
        self.end_headers()

    def _short(self, status: int, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _status(error: TrainctlError) -> int:
    if error.retryable:
        return 503
    kinds: dict[type[TrainctlError], int] = {SourceGone: 404, SourceWrong: 412}
    return kinds.get(type(error), 403)


def _waiting(error: TrainctlError) -> dict[str, str]:
    """The host waits as long as upstream asks for, and not as long as it thinks right."""
    asked = error.retry_after if isinstance(error, SourceBusy) else None
    return {"Retry-After": str(ceil(asked))} if asked else {}


@contextlib.contextmanager
def relaying(token: str) -> Iterator[Relay]:
    """Serve for as long as the block lasts."""
    relay = Relay(token)
    thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()
