"""Run Terraform or OpenTofu, also by a process that outlives this one."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import IO

from trainctl.errors import NodeError, TrainctlError, UserInterrupt
from trainctl.remote.responses import printable_tail

_POLL_SECONDS = 0.1
_MOST = 800
"""Characters of the beginning and of the end of an error."""
_IGNORED = (
    "TF_VAR_", "TF_CLI_ARGS", "TF_LOG", "TF_HTTP_", "TF_WORKSPACE", "TF_DATA_DIR", "TF_ENCRYPTION"
)  # fmt: skip
"""Prefixes of the user's variables that would change what a plan means, or log secrets."""
_FIXED = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}
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
    started: Callable[[int], None] = lambda _: None,
    name: str = "",
) -> bytes:
    """Run a program and return its output; NodeError with its errors if it fails. It inherits ``plan``.

    Once ``cancelled``, it is asked to stop and waited for.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith(_IGNORED)}
    name = name or f"{Path(command[0]).name} {command[1]}"
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**own, **_FIXED, **variables},
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[plan.fileno()] if plan else (),
        start_new_session=True,
    )
    started(process.pid)
    asked = False
    while True:
        try:
            output, errors = process.communicate(timeout=_POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            if cancelled.is_set() and not asked:
                process.send_signal(signal.SIGINT)
                asked = True
    if process.returncode and asked:
        raise UserInterrupt(f"stopped {name}", "The next apply continues.")
    if process.returncode:
        text = (errors or output).decode(errors="replace")
        text = text[max(0, text.find("Error: ")) :]
        if len(text) > 2 * _MOST:  # such as the output of a command
            text = f"{text[:_MOST]} […] {text[-_MOST:]}"
        raise NodeError(f"{name} failed", printable_tail(text.encode()), code="terraform-failed")
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
