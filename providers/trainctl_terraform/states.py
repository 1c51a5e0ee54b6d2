"""State and lock of a node in the project's records, and Terraform's http backend for them.

https://developer.hashicorp.com/terraform/language/backend/http
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainctl.base.system.processes import Process, describe_process, is_dead
from trainctl.errors import TrainctlError
from trainctl.plugin_api.project import ProviderRecords


class NodeState:
    """State and lock of one node, below ``nodes/ID/`` of the records."""

    def __init__(self, records: ProviderRecords, id_: str) -> None:
        self.records = records
        self._state, self.lock_key = f"nodes/{id_}/state.json", f"nodes/{id_}/lock.json"
        self.processes = [describe_process()]
        """Those that change the node while it is locked."""
        self.failure: TrainctlError | None = None
        """Why the state could not be read or written."""

    def read(self) -> bytes:
        """Return the state as the program wrote it; empty without one."""
        return self.records.get(self._state) or b""

    def load(self) -> dict[str, Any]:
        """Return the state; empty without one."""
        return dict(json.loads(self.read() or b"{}"))

    def restore(self, data: bytes) -> None:
        """Write a state that the program could not send, unless there is a newer one."""
        if json.loads(data).get("serial", 0) > self.load().get("serial", -1):
            self.records.put(self._state, data)

    def delete(self) -> None:
        """Delete state and lock."""
        self.records.delete([self._state, self.lock_key])

    def holder(self) -> tuple[str, bool | None] | None:
        """Return the host of the lock, and whether its processes have ended, None if unknown; None if it is free."""
        data = self.records.get(self.lock_key)
        if data is None:
            return None
        document = json.loads(data)
        ended = [is_dead(Process(**each)) for each in document["processes"]]
        return document["host"], False if False in ended else None if None in ended else True

    def unlock(self) -> None:
        """Release the lock."""
        self.records.delete([self.lock_key])

    def answer(self, method: str, data: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a request of the program."""
        if method == "GET":
            state = self.read()
            return (200 if state else 204), state
        if method == "POST":
            self.records.put(self._state, data)
        elif method == "UNLOCK":
            self.unlock()
        else:
            processes = [each._asdict() for each in self.processes]
            lock = {"host": os.uname().nodename, "processes": processes, "info": json.loads(data)}
            if not self.records.put_if_absent(self.lock_key, json.dumps(lock).encode()):
                holder = self.records.get(self.lock_key)
                return 423, json.dumps(json.loads(holder)["info"]).encode() if holder else data
        return 200, b""


@contextmanager
def serve(state: NodeState) -> Iterator[dict[str, str]]:
    """Serve a state on the loopback interface, with a token; yields the variables by which the backend uses it."""
    token = secrets.token_urlsafe(24)
    expected = "Basic " + base64.b64encode(f"trainctl:{token}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = 401, b""
            if hmac.compare_digest(self.headers.get("Authorization") or "", expected):
                try:
                    status, body = state.answer(self.command, data)
                except TrainctlError as error:
                    state.failure, status = error, 500
            with suppress(OSError):  # the program is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = do_LOCK = do_UNLOCK = _serve  # noqa: N815 (names of the library)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        addresses = {f"TF_HTTP_{name}ADDRESS": url for name in ("", "LOCK_", "UNLOCK_")}
        try:
            yield {**addresses, "TF_HTTP_USERNAME": "trainctl", "TF_HTTP_PASSWORD": token}
        finally:
            server.shutdown()
