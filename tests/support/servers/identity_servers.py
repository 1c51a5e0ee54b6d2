"""Google's servers that exchange an identity token for a service account's, as far as that needs them; and GitHub's that gives one."""
# ruff: noqa: N802  the names of handlers are the library's

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from tests.support.servers.hub import FaultyHandler, listen

POOL = "projects/1/locations/global/workloadIdentityPools/ci/providers/github"
_FEDERATED = {
    "access_token": "federated-token",
    "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "token_type": "Bearer",
}
AUDIENCE = f"//iam.googleapis.com/{POOL}"


@dataclass
class IdentityServers:
    """What was asked, and what was granted."""

    url: str = ""
    refuses: int = 0
    """The status of every answer, if it is one."""
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)


@contextmanager
def identity_servers(tls: ssl.SSLContext | None = None) -> Iterator[IdentityServers]:
    """One server on loopback for all of it."""
    state = IdentityServers()

    class Handler(FaultyHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            is_form = "form" in self.headers["Content-Type"]
            body = dict(parse_qsl(text)) if is_form else json.loads(text)
            state.asked.append((self.path, body, self.headers.get("Authorization")))
            if state.refuses:
                self._answer(
                    state.refuses,
                    {"error": "denied", "error_description": f"not {body.get('subject_token')}"},
                )
            elif self.path == "/v1/token":
                known = body["audience"] == AUDIENCE and body["subject_token"].count(".") == 2
                self._answer(200 if known else 400, {**_FEDERATED, "expires_in": 3600})
            else:
                known = self.headers.get("Authorization") == "Bearer federated-token"
                state.granted.append(f"ya29.granted-token-{len(state.granted)}")
                ends = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
                document = {"accessToken": state.granted[-1], "expireTime": ends}
                self._answer(200 if known else 401, document)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            state.asked.append((self.path, query, self.headers.get("Authorization")))
            self._answer(200, {"value": "header.claims.signature"})

        def _answer(self, status: int, document: Any) -> None:
            self.answer(status, json.dumps(document).encode())

    with listen(Handler, tls) as state.url:
        yield state
