"""Instance metadata service (IMDSv2) of one EC2 instance, on the instance's own loopback address."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8169
"""Every instance has an address of its own, so all can have the same port."""


@dataclass
class InstanceMetadata:
    """Values below ``/latest/``, which tests may change while the server runs, and all requested paths."""

    values: dict[str, str]
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def notify_interruption(self, seconds: float, action: str = "terminate") -> None:
        """Announce that the spot instance ends in ``seconds``."""
        time = _time(seconds)
        notice = json.dumps({"action": action, "time": time})
        self.values["meta-data/spot/instance-action"] = notice
        if action == "terminate":
            self.values["meta-data/spot/termination-time"] = time

    def recommend_rebalance(self) -> None:
        """Announce an elevated risk of an interruption."""
        notice = json.dumps({"noticeTime": _time(0)})
        self.values["meta-data/events/recommendations/rebalance"] = notice

    def clear_notices(self) -> None:
        """Remove the notices of an interruption and of a rebalance."""
        for name in (
            "spot/instance-action",
            "spot/termination-time",
            "events/recommendations/rebalance",
        ):
            self.values.pop(f"meta-data/{name}", None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, metadata: InstanceMetadata) -> None:
        super().__init__((address, PORT), _Handler)
        self.metadata = metadata


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token":
            self._answer(404)
        elif not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            self._answer(400)
        else:
            token = secrets.token_urlsafe(16)
            self.server.metadata.tokens.add(token)
            self._answer(200, token)

    def do_GET(self) -> None:
        metadata = self.server.metadata
        metadata.requests.append(self.path)
        if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
            self._answer(401)
        else:
            found = _value(metadata.values, self.path)
            self._answer(404 if found is None else 200, found or "")

    def _answer(self, status: int, text: str = "") -> None:
        body = text.encode("latin-1")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
        self.end_headers()
        self.wfile.write(body)

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


def _value(values: Mapping[str, str], path: str) -> str | None:
    """Return a value, or the names in a directory of values."""
    path = path.removeprefix("/latest/").rstrip("/")
    below = set()
    for name in list(values):
        if name.startswith(f"{path}/"):
            first, slash, _ = name.removeprefix(f"{path}/").partition("/")
            below.add(first + slash)
    return values.get(path) or "\n".join(sorted(below)) or None


def _time(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
