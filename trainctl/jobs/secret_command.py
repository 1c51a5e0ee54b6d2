"""Running a command for a secret's value: without a shell, without a terminal, for a bounded time."""

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
from trainctl.jobs.secret_errors import missing_error, unavailable_error

SECONDS = 30.0
"""How long a command may take."""
_MAX_STDERR = 4096


def run_secret_command(
    spec: SecretSpec,
    directory: Path,
    environ: Mapping[str, str],
    limit: int,
    register: Callable[[str], str],
    seconds: float = SECONDS,
) -> bytes:
    """What the command prints; a little more than ``limit`` bytes of it where it is more. The caller has asked whether it may run.

    It runs in the manifest's directory, has nothing to read, and is ended with all that it started when its time is over.
    TrainctlError where it fails; what it printed is masked before its own complaint is shown.
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
            said, complained = _read(process, limit, deadline)
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
        for text in said.decode("utf-8", "replace").split():
            if len(text) >= 8:
                register(text)
        lines = complained.decode("utf-8", "replace").strip().splitlines()
        raise unavailable_error(
            spec, f"{spec.source} exited with {code}", lines[-1] if lines else ""
        )
    return said


def resolve_program(spec: SecretSpec, directory: Path, environ: Mapping[str, str]) -> Path:
    """The program that a command means; TrainctlError if there is none."""
    name = spec.command[0]
    if "/" in name:
        return directory.absolute() / name
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise missing_error(spec, f"program {name} not found", "Install it, or use its full path.")
    return Path(found).absolute()


def _read(process: subprocess.Popen[bytes], limit: int, deadline: float) -> tuple[bytes, bytes]:
    """What comes on both outputs until they are closed, of each only so much. TimeoutError after the deadline."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 (asked for)
    said, complained = b"", b""
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
                    said += piece if len(said) <= limit else b""
                else:
                    complained = (complained + piece)[-_MAX_STDERR:]
    return said, complained
