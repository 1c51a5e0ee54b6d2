"""Training progress and results that a job reports.

A job appends JSON lines with numbers to ``$TRAINCTL_PROGRESS``: ``step``, ``total``, ``remaining_seconds``, and any other,
such as ``loss``, which is a result. A newer line overrides the values of older ones.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import time
from typing import Any, Dict, List, Mapping, Optional

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.network.addresses import listen
from trainctl.base.protocol.runs import ReportedStep, TrainingProgress
from trainctl.base.system.syscalls import fork_child
from trainctl.node.metrics import trainer_hook
from trainctl.node.runs.points import (
    HEAD_BYTES,
    PLACES,
    TAIL_BYTES,
    ProgressTimes,
    begin_attempt,
    numbers_of,
)
from trainctl.node.runs.record import NodeRun


def read_progress(
    run: NodeRun, started_at: Optional[float], *, is_live: bool = True
) -> Optional[TrainingProgress]:
    """Read the newest progress; None if the job reported none."""
    row = newest_values(run)
    if not row.keys() & {"step", "loss"}:
        return None
    at = run.progress_lines.stat().st_mtime
    step, total = row.get("step"), row.get("total")
    left = row.get("remaining_seconds")
    if left is None and started_at and step and total:
        is_resumed = run.record.get("loaded") or run.record.get("retries")
        # resumed training begins at its first step
        first = numbers_of(_read(run, 0, HEAD_BYTES)[::-1]).get("step", 0.0) if is_resumed else 0.0
        if step > first:
            left = (at - started_at) * (total - step) / (step - first)
    reported: ReportedStep = {
        "step": None if step is None else int(step),
        "total": None if total is None else int(total),
        "loss": row.get("loss"),
    }
    if left is not None:
        left = max(0.0, left - (time.time() - at)) if is_live else None
    return {**reported, "remaining_seconds": left, "updated_at": at}


def newest_values(run: NodeRun) -> Dict[str, float]:
    """Return the newest value of each number in the last lines."""
    with contextlib.suppress(OSError):
        size = run.progress_lines.stat().st_size
        return numbers_of(_read(run, max(0, size - TAIL_BYTES), TAIL_BYTES))
    return {}


def _read(run: NodeRun, start: int, length: int) -> List[bytes]:
    with run.progress_lines.open("rb") as stream:
        stream.seek(start)
        return stream.read(length).splitlines()


_LOOPBACK = "127.0.0.1"
_MAX_BYTES = 2**18
_PREFIXES = ("KUBEFLOW_TRAINER_STATUS", "KUBEFLOW_TRAINER_SERVER")
"""Of the variables: in the KEP, and in releases of Kubeflow and transformers."""
_CERTIFICATE = b"""\
-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUKa5i4gW5KRZqDp/4wp9LC07dVIMwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIdHJhaW5jdGwwIBcNMjYxMTI2MTczMDEzWhgPMjEyNjExMDIx
NzMwMTNaMBMxETAPBgNVBAMMCHRyYWluY3RsMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEfTbLsIaa9ylGbAhovhufeA5nLBq1Aw/4Jg+EoPrKyVtihClblQY+tyvr
LmH7HgCRM50dd4wscP802cvrUbAp1aNTMFEwHQYDVR0OBBYEFKSAfvcEh+/T4em6
qrJGFXrljy/qMB8GA1UdIwQYMBaAFKSAfvcEh+/T4em6qrJGFXrljy/qMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAKOBmzgEtLbtwa7iSnlmO1YX
3kXmao4mtValXQvUeSr7AiAbxcUI5oWUujczHiaDXfiwKr9hbMxidBWEYiXqepBO
bQ==
-----END CERTIFICATE-----
"""
"""Clients load a certificate, although the endpoint speaks HTTP. The private key of this one was discarded."""


class ProgressEndpoint:
    """Endpoint of a run, served by a child of its supervisor during each attempt."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self.times = ProgressTimes(run)
        self._listener: Optional[socket.socket] = None
        self._token = os.urandom(16).hex()
        self._sent: Dict[str, Any] = {}
        self._written = 0

    def serve(self) -> None:
        """Start the child; like all other processes below the supervisor it ends with the attempt."""
        listener = self._listener
        if listener is not None:
            with contextlib.suppress(OSError):
                fork_child(lambda: self._serve(listener), listener.fileno())
            listener.close()

    def variables(self) -> Dict[str, str]:
        """Discard the progress of an earlier attempt and listen; return the job's variables."""
        directory = make_directory(self._run.progress)
        begin_attempt(self._run, self.times)
        make_directory((directory / trainer_hook.FILE).parent)
        files = {"token": self._token.encode(), "ca.crt": _CERTIFICATE}
        for name, content in {**files, trainer_hook.FILE: trainer_hook.SOURCE}.items():
            write_atomic(directory / name, content, durable=False)
        variables = {"TRAINCTL_PROGRESS": str(self._run.progress_lines)}
        try:
            (self._listener,) = listen([_LOOPBACK])
        except OSError:  # the job can only append lines
            self._listener = None
            return variables
        for prefix in _PREFIXES:
            variables[f"{prefix}_URL"] = f"http://{_LOOPBACK}:{self._listener.getsockname()[1]}/"
            variables[f"{prefix}_TOKEN"] = str(directory / "token")
            variables[f"{prefix}_CA_CERT"] = str(directory / "ca.crt")
        return variables

    def _serve(self, listener: socket.socket) -> int:
        from http import HTTPStatus  # slow to import, and few processes serve
        from http.server import BaseHTTPRequestHandler
        from socketserver import TCPServer

        endpoint, expected = self, f"Bearer {self._token}"

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_POST(self) -> None:
                actual, status = self.headers.get("Authorization", ""), HTTPStatus.OK
                if not hmac.compare_digest(actual.encode(), expected.encode()):
                    status = HTTPStatus.UNAUTHORIZED
                else:
                    try:
                        length = int(self.headers.get("Content-Length", ""))
                        if length > _MAX_BYTES:
                            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                        else:
                            endpoint._append(json.loads(self.rfile.read(length))["trainerStatus"])
                    except (ValueError, TypeError, KeyError, AttributeError):
                        status = HTTPStatus.BAD_REQUEST
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        server = TCPServer((_LOOPBACK, 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.serve_forever()
        return 0

    def _append(self, status: Mapping[str, Any]) -> None:
        """Append a ``trainerStatus``, whose metrics are texts; ValueError if it isn't one.

        transformers sends the last value of each with every report: only new ones are points, and none if the job itself
        appends lines.
        """
        row: Dict[str, Any] = {"time": self.times.now}
        for metric in list(status.get("metrics") or ())[:256]:
            name = str(metric["name"])[:64]
            with contextlib.suppress(ValueError):
                row[_NAMES.get(name.replace("_", "").lower(), name)] = float(metric["value"])
        percent = status.get("progressPercentage")
        total = row.get("total", newest_values(self._run).get("total"))
        # transformers reports 0 % before a resumed run's first step
        if percent and total and "step" not in row:
            row["step"] = total * float(percent) // 100
        left = status.get("estimatedRemainingSeconds")
        # transformers divides the time of a resumed process by all steps: estimate it from the steps
        if left is not None and not (total and "step" in row):
            row["remaining_seconds"] = float(left)
        sent, self._sent = self._sent, {**self._sent, **row}
        flags = os.O_WRONLY | os.O_APPEND
        with os.fdopen(os.open(self._run.progress_lines, flags), "w") as stream:
            is_only_source = stream.seek(0, os.SEEK_END) == self._written
            for name in row.keys() - PLACES - {"time"}:
                if not is_only_source or row[name] == sent.get(name):
                    del row[name]
            self._written += stream.write(json.dumps(row) + "\n")


_NAMES = {
    "currentstep": "step",
    "globalstep": "step",
    "totalsteps": "total",
    "maxsteps": "total",
}
"""Names of metrics in lower case and without underscores."""
