"""Training progress and results that a job reports.

A job appends JSON lines with numbers to ``$TRAINCTL_PROGRESS``: ``step``, ``total``, ``remaining_seconds``, and any other,
such as ``loss``, which is a result. A newer line overrides the values of older ones. Others post by KEP-2779 of Kubeflow:
https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
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
from trainctl.base.protocol.runs import TrainingProgress
from trainctl.base.system.syscalls import fork_child
from trainctl.node.metrics import trainer_hook
from trainctl.node.runs.points import begin_attempt, numbers_of
from trainctl.node.runs.record import NodeRun

_HEAD_BYTES = 2**12
_TAIL_BYTES = 2**16


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
        first = numbers_of(_read(run, 0, _HEAD_BYTES)[::-1]).get("step", 0.0) if is_resumed else 0.0
        if step > first:
            left = (at - started_at) * (total - step) / (step - first)
    if left is not None:
        left = max(0.0, left - (time.time() - at)) if is_live else None
    return {
        "step": None if step is None else int(step),
        "total": None if total is None else int(total),
        "loss": row.get("loss"),
        "remaining_seconds": left,
        "updated_at": at,
    }


def newest_values(run: NodeRun) -> Dict[str, float]:
    """Return the newest value of each number in the last lines."""
    with contextlib.suppress(OSError):
        size = run.progress_lines.stat().st_size
        return numbers_of(_read(run, max(0, size - _TAIL_BYTES), _TAIL_BYTES))
    return {}


def _read(run: NodeRun, start: int, length: int) -> List[bytes]:
    with run.progress_lines.open("rb") as stream:
        stream.seek(start)
        return stream.read(length).splitlines()


_LOOPBACK = "127.0.0.1"
_MAX_BYTES = 2**18
_PREFIXES = ("KUBEFLOW_TRAINER_STATUS", "KUBEFLOW_TRAINER_SERVER")
"""Of the variables: in the KEP, and in releases of Kubeflow and transformers."""
_NAMES = {"current_step": "step", "global_step": "step", "total_steps": "total"}
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
        self._listener: Optional[socket.socket] = None
        self._token = os.urandom(16).hex()

    def variables(self) -> Dict[str, str]:
        """Discard the progress of an earlier attempt and listen; return the job's variables."""
        directory, hook = self._run.progress, self._run.progress / trainer_hook.FILE
        make_directory(hook.parent)
        begin_attempt(self._run)
        write_atomic(hook, trainer_hook.SOURCE, durable=False)
        write_atomic(directory / "token", self._token.encode(), durable=False)
        write_atomic(directory / "ca.crt", _CERTIFICATE, durable=False)
        variables = {"TRAINCTL_PROGRESS": str(self._run.progress_lines)}
        with contextlib.suppress(OSError):  # else the job can only append lines
            (self._listener,) = listen([_LOOPBACK])
            for prefix in _PREFIXES:
                port = self._listener.getsockname()[1]
                variables[f"{prefix}_URL"] = f"http://{_LOOPBACK}:{port}/"
                variables[f"{prefix}_TOKEN"] = str(directory / "token")
                variables[f"{prefix}_CA_CERT"] = str(directory / "ca.crt")
        return variables

    def serve(self) -> None:
        """Start the child; like all other processes below the supervisor it ends with the attempt."""
        if (listener := self._listener) is not None:
            with contextlib.suppress(OSError):
                fork_child(lambda: self._serve(listener), listener.fileno())
            listener.close()

    def _serve(self, listener: socket.socket) -> int:
        from http.server import BaseHTTPRequestHandler  # slow to import, and few processes serve
        from socketserver import TCPServer

        endpoint, expected = self, f"Bearer {self._token}"

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_POST(self) -> None:
                actual, status = self.headers.get("Authorization", ""), 200
                if not hmac.compare_digest(actual.encode(), expected.encode()):
                    status = 401
                else:
                    try:
                        length = min(int(self.headers.get("Content-Length", "")), _MAX_BYTES)
                        endpoint._append(json.loads(self.rfile.read(length))["trainerStatus"])
                    except (ValueError, TypeError, KeyError, AttributeError):
                        status = 400
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
        """Append a ``trainerStatus``, whose metrics are texts; ValueError if it isn't one."""
        row: Dict[str, Any] = {"time": time.time()}
        for metric in list(status.get("metrics") or ())[:256]:
            name = str(metric["name"])[:64]
            with contextlib.suppress(ValueError):
                row[_NAMES.get(name, name)] = float(metric["value"])
        percent = status.get("progressPercentage")
        total = row.get("total", newest_values(self._run).get("total"))
        # transformers reports 0 % before a resumed run's first step
        if percent and total and "step" not in row:
            row["step"] = total * float(percent) // 100
        left = status.get("estimatedRemainingSeconds")
        # transformers divides the time of a resumed process by all steps: estimate it from the steps
        if left is not None and not (total and "step" in row):
            row["remaining_seconds"] = float(left)
        with self._run.progress_lines.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
