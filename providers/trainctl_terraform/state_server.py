"""Terraform's http backend for one node: its state goes straight to the project's records.

https://developer.hashicorp.com/terraform/language/backend/http
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainctl.base.system.processes import Process, describe_process, is_dead
from trainctl.errors import TrainctlError
from trainctl.plugin_api.project import ProviderRecords

_USER = "trainctl"


class StateServer:
    """Serves state and lock of one node on the loopback interface, with a token; a context manager."""

    def __init__(self, state: NodeStateDocument) -> None:
        self._state = state
        self._token = secrets.token_urlsafe(24)

    def __enter__(self) -> StateServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._state, self._token))
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True, name="terraform-state"
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the backend use this server."""
        url = f"http://127.0.0.1:{self._server.server_port}/"
        addresses = {f"TF_HTTP_{name}ADDRESS": url for name in ("", "LOCK_", "UNLOCK_")}
        return {**addresses, "TF_HTTP_USERNAME": _USER, "TF_HTTP_PASSWORD": self._token}


class NodeStateDocument:
    """State and lock of one node in the records, below ``nodes/ID/``."""

    def __init__(self, records: ProviderRecords, id_: str) -> None:
        self._records = records
        self._state, self.lock_key = f"nodes/{id_}/state.json", f"nodes/{id_}/lock.json"
        self.process: Process | None = None
        """The program that runs, which takes the lock."""
        self.failure: TrainctlError | None = None
        """Why the state could not be read or written."""

    def read(self) -> bytes | None:
        """Return the state as the program wrote it; None without one."""
        return self._records.get(self._state)

    def load(self) -> dict[str, Any]:
        """Return the state; empty without one."""
        return dict(json.loads(self.read() or b"{}"))

    def write(self, data: bytes) -> None:
        """Replace the state."""
        self._records.put(self._state, data)

    def restore(self, data: bytes) -> None:
        """Write a state that the program could not send, unless there is a newer one."""
        if json.loads(data).get("serial", 0) > self.load().get("serial", -1):
            self.write(data)

    def delete(self) -> None:
        """Delete state and lock."""
        self._records.delete([self._state, self.lock_key])

    def holder(self) -> tuple[dict[str, Any], bool | None] | None:
        """Return the lock's document and whether its process is dead, None if unknown; None if it is free."""
        data = self._records.get(self.lock_key)
        if data is None:
            return None
        document = json.loads(data)
        return document, is_dead(Process(**document["process"]))

    def lock(self, info: bytes) -> bytes | None:
        """Take the lock for the program that runs; if another has it, return that one's info."""
        process = (self.process or describe_process())._asdict()
        document = {"host": os.uname().nodename, "process": process, "info": json.loads(info)}
        if self._records.put_if_absent(self.lock_key, json.dumps(document).encode()):
            return None
        holder = self._records.get(self.lock_key)
        return json.dumps(json.loads(holder)["info"]).encode() if holder else info

    def unlock(self) -> None:
        """Release the lock."""
        self._records.delete([self.lock_key])


def _handler(state: NodeStateDocument, token: str) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"{_USER}:{token}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not hmac.compare_digest(self.headers.get("Authorization") or "", expected):
                return self._reply(401)
            try:
                self._reply(*_answer(state, self.command, data))
            except TrainctlError as error:
                state.failure = error
                self._reply(500)

        do_GET = do_POST = do_LOCK = do_UNLOCK = _serve  # noqa: N815 (names of the library)

        def _reply(self, status: int, body: bytes = b"") -> None:
            with suppress(OSError):  # the program is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


def _answer(state: NodeStateDocument, method: str, data: bytes) -> tuple[int, bytes]:
    if method == "GET":
        found = state.read()
        return (200, found) if found else (204, b"")
    if method == "POST":
        state.write(data)
    elif method == "UNLOCK":
        state.unlock()
    elif (holder := state.lock(data)) is not None:
        return 423, holder
    return 200, b""
