"""Instance metadata service (IMDSv2) of one EC2 instance, on the instance's own loopback address."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8169
"""Every instance has an address of its own, so all can have the same port."""


@dataclass
class InstanceMetadata:
    """Values below ``/latest/meta-data/``, which tests may change while the server runs."""

    values: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def notify_interruption(self, seconds: float) -> None:
        """Announce that the spot instance is terminated in ``seconds``."""
        notice = {"action": "terminate", "time": _time(seconds)}
        self.values["spot/instance-action"] = json.dumps(notice)

    def recommend_rebalance(self) -> None:
        """Announce an elevated risk of an interruption."""
        notice = json.dumps({"noticeTime": _time(0)})
        self.values["events/recommendations/rebalance"] = notice


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, metadata: InstanceMetadata) -> None:
        super().__init__((address, PORT), _Handler)
        self.metadata = metadata


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        token = secrets.token_urlsafe(16)
        self.server.metadata.tokens.add(token)
        self._respond(200, token)

    def do_GET(self) -> None:
        metadata = self.server.metadata
        if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
            self._respond(401)
        else:
            value = metadata.values.get(self.path.removeprefix("/latest/meta-data/"))
            self._respond(404 if value is None else 200, value or "")

    def _respond(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serve_metadata(address: str, metadata: InstanceMetadata) -> Callable[[], None]:
    """Serve on ``http://ADDRESS:8169/`` until the returned function is called."""
    server = _Server(address, metadata)
    thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close


def _time(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
