"""Container engines: detect which ones work, run their programs with a timeout."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.protocol.host import EngineInfo as EngineAnswer

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
ORDER = (PODMAN, DOCKER, APPTAINER)
"""Order of preference."""

CALL_SECONDS = 60.0
_PROBE_SECONDS = 15.0
_HELP_PREFIXES = ("Run '", "See '", "Usage:")
_PROBES = {
    PODMAN: (PODMAN, "info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"),
    DOCKER: (DOCKER, "info", "--format", "{{.ServerVersion}} {{.SecurityOptions}}"),
    APPTAINER: (APPTAINER, "--version"),
}


class LocalEngine(NamedTuple):
    """A working engine; ``root_is_user``: root in a container is this user outside."""

    name: str
    version: str
    root_is_user: bool

    def to_json(self) -> EngineAnswer:
        """Convert to the form of the protocol."""
        return {"name": self.name, "version": self.version, "root_is_user": self.root_is_user}


class ProgramResult(NamedTuple):
    """Output and exit code of a program."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """One line with the cause of the failure."""
        return complaint(self.err.strip() or self.out) or f"exit code {self.code}"


def complaint(text: str) -> str:
    """Last line that is not a hint about help; empty if there is none."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line and not line.startswith(_HELP_PREFIXES)), "")


def run_program(
    argv: Sequence[str],
    seconds: float = CALL_SECONDS,
    variables: Optional[Mapping[str, str]] = None,
) -> ProgramResult:
    """Run a program to its end; exit code 127 if missing, 124 on a timeout."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            env={**os.environ, **(variables or {})},
            check=False,
        )
    except FileNotFoundError:
        return ProgramResult(127, "", f"{argv[0]} is not installed")
    except OSError as error:
        return ProgramResult(126, "", f"cannot run {argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ProgramResult(124, "", f"{argv[0]} timed out after {seconds:g} s")
    return ProgramResult(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def probe_engine(name: str) -> Tuple[Optional[LocalEngine], str]:
    """Query an engine; if it doesn't work, None and the reason."""
    result = run_program(_PROBES[name], _PROBE_SECONDS)
    if result.code != 0:
        return None, _unusable_text(name, result)
    words = result.out.split()
    if name == APPTAINER:
        return LocalEngine(name, words[-1] if words else "", root_is_user=True), ""
    version, rest = (words[0] if words else ""), result.out.lower()
    root_is_user = os.geteuid() == 0 or " true" in rest or "name=rootless" in rest
    return LocalEngine(name, version, root_is_user), ""


def choose_engine(requested: Optional[str]) -> LocalEngine:
    """The requested engine, or the first that works; Failure with the reason for each."""
    if requested is not None and requested not in ORDER:
        raise Failure(
            "request", f"unknown container engine {requested!r}", f"Use one of {', '.join(ORDER)}."
        )
    reasons = []
    for name in (requested,) if requested else ORDER:
        engine, reason = probe_engine(name)
        if engine is not None:
            return engine
        reasons.append(reason)
    raise Failure(
        "failed",
        f"no container engine works: {'; '.join(reasons)}",
        "Install podman, docker or apptainer on the node, or set runtime.engine: host.",
    )


def _unusable_text(name: str, result: ProgramResult) -> str:
    if result.code in (124, 126, 127):
        return result.complaint
    complaint = result.complaint
    for prefix in ("ERROR: ", "Error: "):
        complaint = complaint[len(prefix) :] if complaint.startswith(prefix) else complaint
    return f"{name}: {complaint}"


Emit = Callable[[Dict[str, Any]], None]
_HEARTBEAT_SECONDS = 5.0
_LAST_LINES = 40


def run_streaming(argv: Sequence[str], variables: Mapping[str, str], emit: Emit) -> ProgramResult:
    """Run a program; emit each line as ``{line}``, the last one again every 5 s."""
    lines: Deque[str] = deque([""], _LAST_LINES)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_HEARTBEAT_SECONDS):
            emit({"line": lines[-1]})

    with subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
    ) as process:
        heartbeat = threading.Thread(target=repeat, daemon=True)
        heartbeat.start()
        try:
            for raw in process.stdout or ():
                line = raw.decode(errors="replace").strip()
                if line:
                    lines.append(line)
                    emit({"line": line})
        finally:
            ended.set()
            heartbeat.join()
    return ProgramResult(process.returncode, "", "\n".join(lines))
