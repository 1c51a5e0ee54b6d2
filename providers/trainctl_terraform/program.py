"""Run Terraform or OpenTofu: environment, output, errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError, UserInterrupt
from trainctl.remote.responses import printable_tail

_PROGRAMS = ("tofu", "terraform")
_POLL_SECONDS = 0.1
_MOST = 800
"""Characters of the beginning and of the end of an error."""
_IGNORED = ("TF_VAR_", "TF_CLI_ARGS", "TF_LOG", "TF_HTTP_", "TF_WORKSPACE", "TF_DATA_DIR")
"""Prefixes of the user's variables that would change what a plan means, or log secrets."""
_FIXED = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}


@dataclass(frozen=True, slots=True)
class TerraformProgram:
    """An installed program and the version that it reports."""

    path: str
    version: str

    @property
    def name(self) -> str:
        """``tofu`` or ``terraform``."""
        return Path(self.path).name

    def run(
        self,
        args: Sequence[str],
        directory: Path,
        variables: Mapping[str, str],
        cancelled: Event,
        files: Sequence[int] = (),
        started: Callable[[int], None] | None = None,
    ) -> bytes:
        """Run a subcommand without input and return its output; NodeError with the program's words if it fails.

        Once ``cancelled``, it is asked to stop and waited for. It continues if this process is killed: its output is a file,
        as it would die of a broken pipe. ``files`` are descriptors that it inherits.
        """
        with memory_file() as (output, _), memory_file() as (errors, _):
            process = subprocess.Popen(
                [self.path, *args],
                cwd=directory,
                env=_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=files,
                start_new_session=True,
            )
            if started is not None:
                started(process.pid)
            asked = False
            while (code := _wait(process)) is None:
                if cancelled.is_set() and not asked:
                    process.send_signal(signal.SIGINT)
                    asked = True
            if code and asked:
                raise UserInterrupt(f"stopped {self.name} {args[0]}", "The next apply continues.")
            texts = [read_memory(output), read_memory(errors)]
        if code:
            raise self._failure(args[0], *texts)
        return texts[0]

    def _failure(self, command: str, output: bytes, errors: bytes) -> NodeError:
        found = [line["diagnostic"] for line in json_lines(output) if "diagnostic" in line]
        found = [each for each in found if each.get("severity") == "error"]
        if not found:
            return NodeError(
                f"{self.name} {command} failed",
                printable_tail(errors or output),
                code="terraform-failed",
            )
        texts = {
            _shortened(f"{each.get('summary')}\n{each.get('detail')}".strip()) for each in found
        }
        detail = printable_tail("\n\n".join(sorted(texts)).encode())
        return NodeError(f"{self.name} {command} failed", detail, code="terraform-failed")


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text, such as the output of a command."""
    return text if len(text) <= 2 * _MOST else f"{text[:_MOST]} […] {text[-_MOST:]}"


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def json_lines(output: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines of an output."""
    for line in output.splitlines():
        if line.startswith(b"{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_IGNORED)}
    return {**own, **_FIXED, **variables}


def find_program(name: str) -> TerraformProgram:
    """Return the program ``name``, or the first that is installed; NodeError if none is."""
    for candidate in (name,) if name else _PROGRAMS:
        path = shutil.which(candidate)
        if path is not None:
            with tempfile.TemporaryDirectory() as empty:
                program = TerraformProgram(path, "")
                answer = program.run(["version", "-json"], Path(empty), {}, Event())
            try:
                return TerraformProgram(path, str(json.loads(answer)["terraform_version"]))
            except (ValueError, KeyError):
                raise NodeError(f"{path} doesn't report its version") from None
    raise NodeError(
        f"{name or 'neither tofu nor terraform'} is not installed",
        "Install OpenTofu or Terraform 1.10 or newer, or set program of the cluster.",
        code="terraform-missing",
    )


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[tuple[int, str]]:
    """Create a file in memory, which a child process writes, or opens by its path; yields descriptor and path.

    Plans and outputs may have secret values. On macOS, which has no such files, it is in a private directory.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("plan", 0)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "r+b", closefd=False) as file:
            file.write(content)
        yield descriptor, path
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            Path(path).unlink(missing_ok=True)


def read_memory(descriptor: int) -> bytes:
    """Return all that was written to a file of ``memory_file``."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
