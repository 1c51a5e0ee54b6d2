"""Container engines: which of them work here, and calling one with a time limit. See DESIGN.md, "Environments and containers"."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.protocol.code import Engine as EngineAnswer

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
ORDER = (PODMAN, DOCKER, APPTAINER)
"""Which one is taken where several work."""

CALL_SECONDS = 60.0
_LOOK_SECONDS = 15.0
_NO_CAUSE = ("Run '", "See '", "Usage:")
_QUESTIONS = {
    PODMAN: (PODMAN, "info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"),
    DOCKER: (DOCKER, "info", "--format", "{{.ServerVersion}} {{.SecurityOptions}}"),
    APPTAINER: (APPTAINER, "--version"),
}


class Engine(NamedTuple):
    """An engine that answers. ``root_is_user``: root of a container is this user outside of it."""

    name: str
    version: str
    root_is_user: bool

    def to_json(self) -> EngineAnswer:
        """The form that travels."""
        return {"name": self.name, "version": self.version, "root_is_user": self.root_is_user}


class Answer(NamedTuple):
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


def call(
    argv: Sequence[str],
    seconds: float = CALL_SECONDS,
    variables: Optional[Mapping[str, str]] = None,
) -> Answer:
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
        return Answer(127, "", f"{argv[0]} is not installed")
    except OSError as error:
        return Answer(126, "", f"{argv[0]} can't be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"{argv[0]} did not answer within {seconds:g} s")
    return Answer(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def look(name: str) -> Tuple[Optional[Engine], str]:
    """The engine if it works here, else why not: it is asked, within 15 s."""
    answer = call(_QUESTIONS[name], _LOOK_SECONDS)
    if answer.code != 0:
        return None, _why_not(name, answer)
    words = answer.out.split()
    if name == APPTAINER:
        return Engine(name, words[-1] if words else "", root_is_user=True), ""
    version, rest = (words[0] if words else ""), answer.out.lower()
    root_is_user = os.geteuid() == 0 or " true" in rest or "name=rootless" in rest
    return Engine(name, version, root_is_user), ""


def choose(wanted: Optional[str]) -> Engine:
    """The engine that is asked for, or the first that works. Failure says of each why it doesn't."""
    if wanted is not None and wanted not in ORDER:
        raise Failure(
            "request", f"{wanted!r} is no container engine", f"One of {', '.join(ORDER)}."
        )
    reasons = []
    for name in (wanted,) if wanted else ORDER:
        engine, why = look(name)
        if engine is not None:
            return engine
        reasons.append(why)
    raise Failure(
        "failed",
        f"no container engine works: {'; '.join(reasons)}",
        "Install podman, docker or apptainer there, or set runtime.engine: host.",
    )


def _why_not(name: str, answer: Answer) -> str:
    if answer.code in (124, 126, 127):
        return answer.complaint
    complaint = answer.complaint
    for prefix in ("ERROR: ", "Error: "):
        complaint = complaint[len(prefix) :] if complaint.startswith(prefix) else complaint
    return f"{name}: {complaint}"


Emit = Callable[[Dict[str, Any]], None]
_BEAT_SECONDS = 5.0
_KEPT_LINES = 40


def heard(argv: Sequence[str], variables: Mapping[str, str], emit: Emit) -> Answer:
    """Run it to its end; every line is an event ``{line}``, and in silence the last one is repeated every 5 s."""
    lines: Deque[str] = deque([""], _KEPT_LINES)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_BEAT_SECONDS):
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
    return Answer(process.returncode, "", "\n".join(lines))
