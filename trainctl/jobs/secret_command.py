"""Running commands that print a secret, without shell, with a timeout."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from trainctl.desired.values import SecretSpec
from trainctl.jobs.secret_stores import missing_error, unavailable_error

SECONDS = 30.0
"""Timeout of a command."""
_MAX_STDERR = 4096


def run_secret_command(
    spec: SecretSpec,
    directory: Path,
    environ: Mapping[str, str],
    limit: int,
    register: Callable[[str], str],
    seconds: float = SECONDS,
) -> bytes:
    """Run the command in the manifest's directory and return its output.

    Callers check trust first. Longer output is cut slightly above ``limit`` bytes. On timeout, the process group is
    killed. Raises TrainctlError on failure, with stderr after the words of stdout are registered for redaction.
    """
    program = resolve_program(spec, directory, environ)
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            [str(program), *spec.command[1:]],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise missing_error(spec, f"cannot run {spec.source}: {error.strerror}") from None
    with process:
        try:
            stdout, stderr = _read(process, limit, deadline)
            code = process.wait(max(deadline - time.monotonic(), 0))
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
                raise unavailable_error(
                    spec, f"{spec.source} timed out after {seconds:.0f} s"
                ) from None
            raise
    if code != 0:
        for text in stdout.decode("utf-8", "replace").split():
            if len(text) >= 8:
                register(text)
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise unavailable_error(
            spec, f"{spec.source} exited with {code}", lines[-1] if lines else ""
        )
    return stdout


def resolve_program(spec: SecretSpec, directory: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the program; raise TrainctlError if it isn't found."""
    name = spec.command[0]
    if "/" in name:
        return directory.absolute() / name
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise missing_error(spec, f"program {name} not found", "Install it, or use its full path.")
    return Path(path).absolute()


def _read(process: subprocess.Popen[bytes], limit: int, deadline: float) -> tuple[bytes, bytes]:
    """Read stdout and stderr to their ends; raise TimeoutError after the deadline."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 (pipes)
    stdout, stderr = b"", b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    stdout += piece if len(stdout) <= limit else b""
                else:
                    stderr = (stderr + piece)[-_MAX_STDERR:]
    return stdout, stderr
