"""Running a program that takes long, and handing on what it says while it works."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Sequence

from trainctl.node.containers.engines import Answer

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
