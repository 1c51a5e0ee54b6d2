"""A bash that runs the commands of a page one after another, so that ``cd`` and ``export`` last."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Shell:
    """A running bash; commands read an empty standard input."""

    process: subprocess.Popen[str]
    writer: int
    reader: int
    scratch: Path

    def run(self, command: str, seconds: float = 120) -> tuple[list[str], int]:
        """Run a command; the lines of both its output streams, and its exit code."""
        script, output = self.scratch / "command", self.scratch / "output"
        script.write_text(command + "\n", encoding="utf-8")
        assert self.process.stdin is not None
        self.process.stdin.write(
            f"{{ . '{script}'; }} >'{output}' 2>&1 </dev/null; echo $? >&{self.writer}\n"
        )
        self.process.stdin.flush()
        ready, _, _ = select.select([self.reader], [], [], seconds)
        assert ready, f"{command!r} runs longer than {seconds} seconds"
        code = os.read(self.reader, 64)
        assert code, f"{command!r} ended the shell"
        return output.read_text(encoding="utf-8", errors="replace").splitlines(), int(code)


@contextmanager
def bash(directory: Path, environment: Mapping[str, str], scratch: Path) -> Iterator[Shell]:
    """Start it in the directory; what it runs in its session ends with the block."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        ["bash", "--noprofile", "--norc"],
        cwd=directory, env=dict(environment), pass_fds=(writer,), start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    try:
        yield Shell(process, writer, reader, scratch)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            process.communicate()
        os.close(reader)
