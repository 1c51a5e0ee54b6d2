"""A bash that runs the commands of a page one after another, so that ``cd`` and ``export`` last."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


class Shell:
    """A running bash; commands read an empty standard input."""

    def __init__(
        self, process: subprocess.Popen[str], writer: int, reader: int, scratch: Path
    ) -> None:
        self._process = process
        self._writer, self._reader = writer, reader
        self._scratch = scratch

    def run(self, command: str, seconds: float = 120) -> tuple[list[str], int]:
        """Run a command; the lines of both its output streams, and its exit code."""
        script, output = self._scratch / "command", self._scratch / "output"
        script.write_text(command + "\n", encoding="utf-8")
        assert self._process.stdin is not None
        self._process.stdin.write(
            f"{{ . '{script}'; }} >'{output}' 2>&1 </dev/null; echo $? >&{self._writer}\n"
        )
        self._process.stdin.flush()
        code = self._exit_code(command, seconds)
        return output.read_text(encoding="utf-8", errors="replace").splitlines(), code

    def _exit_code(self, command: str, seconds: float) -> int:
        ready, _, _ = select.select([self._reader], [], [], seconds)
        assert ready, f"{command!r} runs longer than {seconds} seconds"
        said = os.read(self._reader, 64).decode()
        assert said, f"{command!r} ended the shell"
        return int(said)


@contextmanager
def bash(directory: Path, environment: Mapping[str, str], scratch: Path) -> Iterator[Shell]:
    """Start it in the directory; what it runs in its session ends with the block."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        ["bash", "--noprofile", "--norc"],
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(writer,),
        start_new_session=True,
        text=True,
    )
    os.close(writer)
    shell = Shell(process, writer, reader, scratch)
    try:
        yield shell
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            process.communicate()
        os.close(reader)
