"""Sources of secrets: environment, file, command, AWS Secrets Manager, keyring.

``secrets`` validates and masks the values. Errors never contain them.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainctl.desired.values import SecretSpec
from trainctl.manifest.checkout import is_from_checkout
from trainctl.manifest.files import open_file
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.trust import Trust
from trainctl.secrets.destinations import SecretUse
from trainctl.secrets.stores import (
    SECRET_STORES,
    missing_error,
    unavailable_error,
    unusable_error,
)

MAX_BYTES = 64 * 2**10
"""Limit of a value: that of AWS Secrets Manager, half of that of a variable on Linux."""
_COMMAND_SECONDS = 30.0
"""Timeout of a command."""
_MAX_ERROR_OUTPUT = 4096


@dataclass(frozen=True, slots=True)
class SecretSources:
    """Context for reading secrets; ``trust`` is loaded only if needed."""

    directory: Path
    environ: Mapping[str, str]
    trust: Callable[[], Trust]
    register: Callable[[str], str]


def read(spec: SecretSpec, context: SecretSources) -> str:
    """Read a secret; raise TrainctlError if missing, PermissionDenied if untrusted."""
    store = SECRET_STORES.get(spec.origin)
    return store.read(spec) if store else _READERS[spec.origin](spec, context)


def is_local(spec: SecretSpec) -> bool:
    """Whether the value is read without running a command or a request."""
    return spec.origin in ("env", "file")


def check_allowed(spec: SecretSpec, context: SecretSources) -> None:
    """Raise PermissionDenied if trust does not allow reading the value."""
    if spec.origin == "command":
        program = resolve_program(spec, context.directory, context.environ)
        own = is_from_checkout(program, context.directory)
        context.trust().require_command(spec.name, spec.command, own=own)
    elif spec.origin == "file" and not secret_path(spec, context).is_relative_to(
        context.directory.resolve()
    ):
        context.trust().require_outside(spec.name)


def secret_path(spec: SecretSpec, context: SecretSources) -> Path:
    """Return the resolved path of a secret with ``from: file``."""
    if spec.source.startswith("~/"):
        return (Path(context.environ.get("HOME", "~")).expanduser() / spec.source[2:]).resolve()
    return (context.directory / spec.source).resolve()


def _from_env(spec: SecretSpec, context: SecretSources) -> str:
    value = context.environ.get(spec.source)
    if not value:
        raise missing_error(
            spec,
            f"environment variable {spec.source} is not set",
            f"Set it where trainctl runs: export {spec.source}=…",
        )
    return value


def _from_file(spec: SecretSpec, context: SecretSources) -> str:
    check_allowed(spec, context)
    path = secret_path(spec, context)
    try:
        with open_file(path) as file:
            data = file.read(MAX_BYTES + 3)
    except OSError as error:
        raise missing_error(
            spec,
            f"cannot read {spec.source}: {error.strerror}",
            "Create the file, or use another source.",
        ) from None
    return _text(spec, data, spec.source)


def _from_command(spec: SecretSpec, context: SecretSources) -> str:
    check_allowed(spec, context)
    data = run_secret_command(spec, context.directory, context.environ, MAX_BYTES, context.register)
    return _text(spec, data, f"the output of {spec.source}")


def _text(spec: SecretSpec, data: bytes, label: str) -> str:
    """Decode the value without a final line end."""
    content = data.removesuffix(b"\n").removesuffix(b"\r")
    if len(content) > MAX_BYTES:
        raise unusable_error(
            spec, f"{label} is longer than {MAX_BYTES // 2**10} KiB", "Use a shorter value."
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise unusable_error(spec, f"{label} is not UTF-8 text") from None


_READERS: Mapping[str, Callable[[SecretSpec, SecretSources], str]] = {
    "env": _from_env,
    "file": _from_file,
    "command": _from_command,
}


@dataclass(frozen=True, slots=True)
class SecretUseCheck:
    """One use, and whether trust allows it."""

    use: SecretUse
    allowed: bool


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Check of a declared secret; ``readable``: it has a valid value."""

    spec: SecretSpec
    readable: bool
    uses: tuple[SecretUseCheck, ...]
    problems: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class SecretPush:
    """Result of storing a secret; ``before`` and ``after`` are versions if supported."""

    spec: SecretSpec
    place: str
    before: str | None
    after: str | None
    changed: bool = True


def run_secret_command(
    spec: SecretSpec,
    directory: Path,
    environ: Mapping[str, str],
    limit: int,
    register: Callable[[str], str],
    seconds: float = _COMMAND_SECONDS,
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
            stdout, stderr = _read_output(process, limit, deadline)
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


def _read_output(
    process: subprocess.Popen[bytes], limit: int, deadline: float
) -> tuple[bytes, bytes]:
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
                    stderr = (stderr + piece)[-_MAX_ERROR_OUTPUT:]
    return stdout, stderr
