"""Run Terraform or OpenTofu, also by a process that outlives this one, and serve it a state."""

from __future__ import annotations

import base64
import hmac
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import IO

from trainctl.errors import NodeError, TrainctlError, UserInterrupt
from trainctl.remote.responses import printable_tail

_POLL_SECONDS = 0.1
_LONGEST_ERROR = 1600
_IGNORED = (
    "TF_VAR_", "TF_CLI_ARGS", "TF_LOG", "TF_HTTP_", "TF_WORKSPACE", "TF_DATA_DIR", "TF_ENCRYPTION"
)  # fmt: skip
"""Prefixes of the user's variables that would change what a plan means, or log secrets."""
_FIXED = {
    "TF_IN_AUTOMATION": "1",
    "TF_INPUT": "0",
    "CHECKPOINT_DISABLE": "1",
    "TF_CLI_ARGS": "-no-color",
}
_WAITING = ("sh", "-c", 'read _ && exec "$@" </dev/null', "sh")
_OUTLIVING = "import pickle, sys; function, *args = pickle.load(sys.stdin.buffer); function(*args)"


def find_program(name: str) -> str:
    """Return the path of a program, by default of the first that is installed; NodeError if none is."""
    path = shutil.which(name or "tofu") or shutil.which(name or "terraform")
    if path is None:
        raise NodeError(
            f"{name or 'neither tofu nor terraform'} is not installed",
            "Install OpenTofu 1.11 or Terraform 1.10, or newer, or set program of the cluster.",
            code="terraform-missing",
        )
    return path


def memory_file(content: bytes = b"") -> IO[bytes]:
    """Return a file without a name, in memory if possible: plans have secret values."""
    memory = Path("/dev/shm")  # noqa: S108
    file = tempfile.TemporaryFile(dir=memory if memory.is_dir() else None)  # noqa: SIM115
    file.write(content)
    file.seek(0)
    return file


def run_program(
    command: Sequence[str],
    directory: Path,
    variables: Mapping[str, str],
    cancelled: Event,
    *,
    plan: IO[bytes] | None = None,
    stdin: IO[bytes] | None = None,
    started: Callable[[int], None] | None = None,
    name: str = "",
) -> bytes:
    """Run a program and return its output; NodeError with its errors if it fails. It inherits ``plan``.

    Once ``cancelled``, it is asked to stop and waited for. It begins when ``started``, which gets its pid, has returned; it never
    does if this process is killed before.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith(_IGNORED)}
    name = name or f"{Path(command[0]).name} {command[1]}"
    with subprocess.Popen(
        [*_WAITING, *command] if started else command,
        cwd=directory,
        env={**own, **_FIXED, **variables},
        stdin=subprocess.PIPE if started else stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[plan.fileno()] if plan else (),
        start_new_session=True,
    ) as process:
        if started:
            started(process.pid)
        asked, line = False, b"\n" if started else None
        while True:
            try:
                output, errors = process.communicate(line, timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                line = None
                if cancelled.is_set() and not asked:
                    process.send_signal(signal.SIGINT)
                    asked = True
    if process.returncode and asked:
        raise UserInterrupt(f"stopped {name}", "The next apply continues.")
    if process.returncode:
        text = errors or output
        text = text[max(0, text.find(b"Error: ")) :][:_LONGEST_ERROR]
        raise NodeError(f"{name} failed", printable_tail(text), code="terraform-failed")
    return output


def run_outliving(
    function: Callable[..., object], *args: object, cancelled: Event, name: str
) -> None:
    """Call a function with the arguments and an event in a process that continues if this one is killed."""
    command = [sys.executable, "-P", "-c", _OUTLIVING]
    with memory_file(pickle.dumps((_call, function, *args))) as stdin:
        run_program(command, Path.cwd(), {}, cancelled, stdin=stdin, name=name)


def _call(function: Callable[..., object], *args: object) -> None:
    cancelled = Event()
    signal.signal(signal.SIGINT, lambda *_: cancelled.set())
    try:
        function(*args, cancelled)
    except TrainctlError as error:
        sys.exit(f"{error.detail or error.summary}")


@contextmanager
def serve(
    answer: Callable[[str, bytes], bytes], failures: list[TrainctlError]
) -> Iterator[dict[str, str]]:
    """Serve a state on the loopback interface, with a token; yields the variables of the program's http backend.

    ``answer`` gets method and body of a request, and returns the body of its answer; its errors are added to ``failures``:
    https://developer.hashicorp.com/terraform/language/backend/http
    """
    token = secrets.token_urlsafe(24)
    expected = "Basic " + base64.b64encode(f"trainctl:{token}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = 401, b""
            if hmac.compare_digest(self.headers.get("Authorization") or "", expected):
                try:
                    status, body = 200, answer(self.command, data)
                except TrainctlError as error:
                    failures.append(error)
                    status = 500
            with suppress(OSError):  # the program is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = _serve  # noqa: N815 (names of the library)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        login = {"TF_HTTP_USERNAME": "trainctl", "TF_HTTP_PASSWORD": token}
        try:
            yield {"TF_HTTP_ADDRESS": url, **login}
        finally:
            server.shutdown()
