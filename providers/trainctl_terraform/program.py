"""Run Terraform or OpenTofu."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import IO

from trainctl.errors import NodeError, UserInterrupt
from trainctl.remote.responses import printable_tail

_POLL_SECONDS = 0.1
_LONGEST_ERROR, _ERROR_LINES = 1600, 12
_IGNORED = (
    "TF_VAR_", "TF_CLI_ARGS", "TF_LOG", "TF_WORKSPACE", "TF_DATA_DIR", "TF_ENCRYPTION"
)  # fmt: skip
"""Prefixes of the user's variables that would change what a plan means, or log secrets."""
_FIXED = {
    "TF_IN_AUTOMATION": "1",
    "TF_INPUT": "0",
    "CHECKPOINT_DISABLE": "1",
    "TF_CLI_ARGS": "-no-color",
}
_WAITING = ("sh", "-c", 'read _ && exec "$@" </dev/null', "sh")


def find_program(name: str) -> Path:
    """Return the path of a program, by default of the first that is installed; NodeError if none is."""
    path = shutil.which(name or "tofu") or shutil.which(name or "terraform")
    if path is None:
        raise NodeError(
            f"{name or 'neither tofu nor terraform'} is not installed",
            "Install OpenTofu 1.11 or Terraform 1.10, or newer, or set program of the cluster.",
            code="terraform-missing",
        )
    return Path(path)


def memory_file(content: bytes = b"") -> IO[bytes]:
    """Return a file in memory: plans and states have secret values."""
    file = os.fdopen(os.memfd_create("trainctl"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def run_program(
    command: Sequence[str],
    directory: Path,
    variables: Mapping[str, str],
    cancelled: Event | None = None,
    *,
    files: Sequence[IO[bytes]] = (),
    started: Callable[[int], object] = lambda pid: None,
    poll: Callable[[], object] = lambda: None,
) -> bytes:
    """Run a program that inherits ``files``, and return its output; NodeError with its errors if it fails.

    Once ``cancelled``, it is asked to stop and waited for. It begins when ``started``, which gets its pid, has returned; it never
    does if this process is killed before, and continues if it is killed later. ``poll`` is called while it runs.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith(_IGNORED)}
    name, asked = f"{Path(command[0]).name} {command[1]}", False
    # Not pipes: their end would kill a program that outlives this process.
    with memory_file() as output, memory_file() as errors:
        with subprocess.Popen(
            [*_WAITING, *command],
            cwd=directory,
            env={**own, **_FIXED, **variables},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            pass_fds=[file.fileno() for file in files],
            start_new_session=True,
        ) as process:
            started(process.pid)
            line: bytes | None = b"\n"
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(line, timeout=_POLL_SECONDS)
                line = None
                poll()
                if cancelled is not None and cancelled.is_set() and not asked:
                    process.send_signal(signal.SIGINT)
                    asked = True
        output.seek(0)
        errors.seek(0)
        if process.returncode and asked:
            raise UserInterrupt(f"stopped {name}", "The next apply continues.")
        if process.returncode:
            text = errors.read() or output.read()
            text = text[max(0, text.find(b"Error: ")) :][:_LONGEST_ERROR]
            lines = [line for line in text.splitlines() if line.strip()][:_ERROR_LINES]
            detail = printable_tail(b"\n".join(lines))
            raise NodeError(f"{name} failed", detail, code="terraform-failed")
        return output.read()
