"""Container engines: which of them work here, and calling one with a time limit. See DESIGN.md, "Environments and containers"."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.protocol.code import EngineInfo as EngineAnswer

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
ORDER = (PODMAN, DOCKER, APPTAINER)
"""Which one is taken where several work."""

CALL_SECONDS = 60.0
_LOOK_SECONDS = 15.0
_NO_CAUSE = ("Run '", "See '", "Usage:")
_PROBES = {
    PODMAN: (PODMAN, "info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"),
    DOCKER: (DOCKER, "info", "--format", "{{.ServerVersion}} {{.SecurityOptions}}"),
    APPTAINER: (APPTAINER, "--version"),
}


class LocalEngine(NamedTuple):
    """An engine that answers. ``root_is_user``: root of a container is this user outside of it."""

    name: str
    version: str
    root_is_user: bool

    def to_json(self) -> EngineAnswer:
        """The form that travels."""
        return {"name": self.name, "version": self.version, "root_is_user": self.root_is_user}


class ProgramResult(NamedTuple):
    """What a program said; ``code`` is its exit code."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it complained about, in a line."""
        return complaint(self.err.strip() or self.out) or f"exit code {self.code}"


def complaint(text: str) -> str:
    """The last line that says what was wrong, and not how to get help; empty if there is none."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line and not line.startswith(_NO_CAUSE)), "")


def run_program(
    argv: Sequence[str],
    seconds: float = CALL_SECONDS,
    variables: Optional[Mapping[str, str]] = None,
) -> ProgramResult:
    """Run an engine's program to its end; one that is missing or silent is an answer too."""
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
        return ProgramResult(126, "", f"{argv[0]} can't be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ProgramResult(124, "", f"{argv[0]} did not answer within {seconds:g} s")
    return ProgramResult(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def probe_engine(name: str) -> Tuple[Optional[LocalEngine], str]:
    """The engine if it works here, else why not: it is asked, within 15 s."""
    answer = run_program(_PROBES[name], _LOOK_SECONDS)
    if answer.code != 0:
        return None, _unusable_text(name, answer)
    words = answer.out.split()
    if name == APPTAINER:
        return LocalEngine(name, words[-1] if words else "", root_is_user=True), ""
    version, rest = (words[0] if words else ""), answer.out.lower()
    root_is_user = os.geteuid() == 0 or " true" in rest or "name=rootless" in rest
    return LocalEngine(name, version, root_is_user), ""


def choose_engine(wanted: Optional[str]) -> LocalEngine:
    """The engine that is asked for, or the first that works. Failure says of each why it doesn't."""
    if wanted is not None and wanted not in ORDER:
        raise Failure(
            "request", f"{wanted!r} is no container engine", f"One of {', '.join(ORDER)}."
        )
    reasons = []
    for name in (wanted,) if wanted else ORDER:
        engine, why = probe_engine(name)
        if engine is not None:
            return engine
        reasons.append(why)
    raise Failure(
        "failed",
        f"no container engine works: {'; '.join(reasons)}",
        "Install podman, docker or apptainer there, or set runtime.engine: host.",
    )


def _unusable_text(name: str, answer: ProgramResult) -> str:
    if answer.code in (124, 126, 127):
        return answer.complaint
    complaint = answer.complaint
    for prefix in ("ERROR: ", "Error: "):
        complaint = complaint[len(prefix) :] if complaint.startswith(prefix) else complaint
    return f"{name}: {complaint}"


Emit = Callable[[Dict[str, Any]], None]
_HEARTBEAT_SECONDS = 5.0
_LAST_LINES = 40


def run_streaming(argv: Sequence[str], variables: Mapping[str, str], emit: Emit) -> ProgramResult:
    """Run it to its end; every line is an event ``{line}``, and in silence the last one is repeated every 5 s."""
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
        beat = threading.Thread(target=repeat, daemon=True)
        beat.start()
        try:
            for raw in process.stdout or ():
                line = raw.decode(errors="replace").strip()
                if line:
                    lines.append(line)
                    emit({"line": line})
        finally:
            ended.set()
            beat.join()
    return ProgramResult(process.returncode, "", "\n".join(lines))
