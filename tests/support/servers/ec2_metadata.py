"""Instance metadata service (IMDSv2) of one EC2 instance, on the instance's own loopback address."""
# ruff: noqa: N802  the names of handlers are the library's

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.support.servers.hub import FaultyHandler, listen

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


class _Handler(FaultyHandler):
    metadata: InstanceMetadata

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        token = secrets.token_urlsafe(16)
        self.metadata.tokens.add(token)
        self.answer(200, token.encode())

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") not in self.metadata.tokens:
            self.answer(401, b"")
        else:
            value = self.metadata.values.get(self.path.removeprefix("/latest/meta-data/"))
            self.answer(404 if value is None else 200, (value or "").encode())


def serve_metadata(address: str, metadata: InstanceMetadata) -> Callable[[], None]:
    """Serve on ``http://ADDRESS:8169/`` until the returned function is called."""
    handler = type("Handler", (_Handler,), {"metadata": metadata})
    with ExitStack() as stack:
        stack.enter_context(listen(handler, address=(address, PORT)))
        return stack.pop_all().close


def _time(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
