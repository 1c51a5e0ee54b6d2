"""A project directory with places of its own, on which trainctl is run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.node_program.agents import bytecode_cache
from tests.support.node_program.node_forks import FORK_MARK
from tests.support.projects.command_forks import WARM_MARK, WarmPopen, can_be_forked

_PASSED = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass
class ProjectHarness:
    """Runs commands in ``directory``; data, caches and home are its neighbours and nobody else's."""

    directory: Path
    variables: dict[str, str] = field(default_factory=dict)
    namespace: str = ""
    """The file of the network namespace in which commands run, where it isn't the tests' own."""
    forks: bool = True
    """Whether commands may be forks of a process that has loaded the program. A fork has no argument list of its own."""

    @property
    def environment(self) -> dict[str, str]:
        """What the program finds: nothing of the user's own settings."""
        top = self.directory.parent
        own = {name: os.environ[name] for name in _PASSED if name in os.environ}
        places = {
            "HOME": str(top / "home"),
            "XDG_DATA_HOME": str(top / "data"),
            "XDG_CACHE_HOME": str(top / "cache"),
            "TERM": "dumb",
        }
        return {**own, **places, **self.variables}

    @property
    def mirror(self) -> Path:
        return self.directory.parent / "data" / "trainctl" / "mirror"

    @property
    def nodes(self) -> Path:
        """Where the nodes of the ``local`` provider are."""
        return self.directory.parent / "cache" / "trainctl" / "nodes"

    def share_bytecode(self) -> None:
        """Have the node program compiled once for all tests of this process, not by each."""
        link = self.directory.parent / "cache" / "trainctl" / "bytecode"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(bytecode_cache())

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def trust(self, *entries: str, policies: str = "") -> None:
        """Write the user's trust file: ``[[allow]]`` entries, and whole tables of policies."""
        path = self.directory.parent / "home" / ".config" / "trainctl" / "trust.toml"
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        text = "".join(f"[[allow]]\n{entry}\n" for entry in entries) + policies
        path.write_text(text)
        path.chmod(0o600)

    def start(
        self, *arguments: str, program: tuple[str, ...] = ("-m", "trainctl"), **options: Any
    ) -> subprocess.Popen[str]:
        """Start it in a session of its own, with pipes."""
        argv, environ = (*program, *arguments), self.environment
        given: dict[str, Any] = {
            "cwd": self.directory,
            "env": environ,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **options,
        }
        if self.forks and can_be_forked(argv, environ):
            return WarmPopen(argv, namespace=self.namespace, **given)
        words = ["nsenter", f"--net={self.namespace}", "--"] if self.namespace else []
        return subprocess.Popen([*words, sys.executable, *argv], start_new_session=True, **given)

    def run(
        self,
        *arguments: str,
        code: int | None = 0,
        seconds: float = 120,
        program: tuple[str, ...] = ("-m", "trainctl"),
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; ``code`` is the exit code it must have, None for any."""
        with self.start(*arguments, program=program) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        argv = ("trainctl", *arguments)
        assert code is None or process.returncode == code, (
            f"{' '.join(argv)} ended with {process.returncode}, not {code}:\n{out}\n{err}"
        )
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def clear(self) -> None:
        """Forget everything that was made: state, lock file, mirror, nodes."""
        top = self.directory.parent
        for place in (top / "data", top / "cache", self.directory / ".trainctl"):
            if place.exists():
                for folder in [place, *place.rglob("*/")]:
                    folder.chmod(0o700)
                shutil.rmtree(place)
        (self.directory / "trainctl.lock").unlink(missing_ok=True)
        self.share_bytecode()

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """Run it with ``--format json`` and read what it printed."""
        return json.loads(self.run(*arguments, "--format", "json", code=code).stdout)

    def events(self, *arguments: str, code: int | None = 0) -> list[dict[str, Any]]:
        """Run it with ``--format json`` and read the lines it printed."""
        return [
            json.loads(line)
            for line in self.run(*arguments, "--format", "json", code=code).stdout.splitlines()
        ]

    def actions(self, *arguments: str) -> dict[str, list[str]]:
        """What a plan would do, without the no-ops: actions by address."""
        changes = self.json("plan", *arguments)["resource_changes"]
        return {
            change["address"]: change["change"]["actions"]
            for change in changes
            if change["change"]["actions"] != ["no-op"]
        }


@contextmanager
def project(top: Path) -> Iterator[ProjectHarness]:
    """A project below ``top``; whatever it left running is ended afterwards."""
    project = ProjectHarness(top / "project")
    project.directory.mkdir(parents=True)
    (top / "home").mkdir()
    project.share_bytecode()
    try:
        yield project
    finally:
        end_processes(str(top))


def end_processes(mark: str) -> list[int]:
    """Kill every process but this one whose arguments or environment mention ``mark``; which they were."""
    result = processes(mark)
    for pid in result:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    return result


def processes(mark: str) -> list[int]:
    """Every process but this one whose arguments or environment mention ``mark``."""
    result = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        is_fork = FORK_MARK in words or WARM_MARK in words
        if alive and (mark.encode() in words or (is_fork and _opens(entry, mark))):
            result.append(int(entry.name))
    return result


def _opens(process: Path, mark: str) -> bool:
    """Whether it has a file open or is in a directory whose path has the mark: a fork has no arguments of its own."""
    with suppress(OSError):
        return any(
            mark in str(link.readlink()) for link in (process / "cwd", *(process / "fd").iterdir())
        )
    return False
