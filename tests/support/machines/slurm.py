"""A real Slurm on this machine: four nodes with two GPUs each, and a partition that preempts the other.

Every daemon is a child process, and its files are below one directory: no service, cgroup or database of the system is used.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_PACKAGES = {"munged": "munge", "sbatch": "slurm-client"}
"""Debian packages whose names differ from those of their programs."""
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_PORTS = range(10_000, 20_000)
"""Below the ports of outgoing connections, so that a restarted daemon finds its port free."""

_CONFIG = Path(__file__).with_suffix(".conf")


def require_slurm() -> None:
    """Skip if a program of Slurm or munge is not installed."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = ", ".join(_PACKAGES.get(name, name) for name in missing)
        pytest.skip(f"needs {', '.join(missing)} (Debian: {packages})")


class SlurmCluster:
    """Nodes n1 to n4 at 127.0.0.11 to 127.0.0.14, partitions ``gpu`` (the default) and ``urgent``."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.nodes = ["n1", "n2", "n3", "n4"]
        self.shared_dir = top / "shared"
        """Directory that all nodes share and every user can write to; jobs of ``sbatch`` run in it."""
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.variables = {"PATH": _PATH, "SLURM_CONF": str(top / "slurm.conf")}
        """Variables that make ``sbatch``, ``squeue`` and the others use this cluster."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        self._environment = {**kept, **self.variables}

    def start(self) -> None:
        """Start the daemons and wait until all nodes are idle."""
        self._configure()
        run = self.top / "run"
        munge = [f"--{kind}-file={run}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        self._spawn("munged", "-F", f"--socket={run}/munge.sock", *munge)
        self.await_that((run / "munge.sock").is_socket, "munged does not answer")
        self._spawn("slurmctld", "-D")
        for name in self.nodes:
            self._spawn("slurmd", "-D", "-N", name, name=name)
        self.await_that(lambda: set(self._usable_nodes()) == set(self.nodes), "nodes are not idle")

    def stop(self) -> None:
        """Kill all daemons, and all processes of jobs."""
        for name in [*self.nodes, "slurmctld", "munged"]:
            self._end(name, signal.SIGKILL)
        self._kill_processes()

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs continue, commands fail after a few seconds."""
        self._end("slurmctld", signal.SIGTERM)

    def start_controller(self) -> None:
        """Start slurmctld again and wait until it answers."""
        self._spawn("slurmctld", "-D")
        self.await_that(lambda: bool(self._usable_nodes()), "slurmctld does not answer")

    def kill_node(self, name: str) -> None:
        """Kill slurmd and all jobs of a node, as a power failure does, and mark it down."""
        self._end(name, signal.SIGKILL)
        self._kill_processes(name)
        self("scontrol", "update", f"nodename={name}", "state=down", "reason=killed")

    def restart_node(self, name: str) -> None:
        """Start slurmd of a killed node and wait until it takes jobs."""
        self._spawn("slurmd", "-D", "-N", name, name=name)
        self.await_that(lambda: name in self._usable_nodes(), f"{name} does not return")

    def __call__(self, *words: str, check: bool = True, script: str = "") -> str:
        """Call a command of Slurm; return its output."""
        done = subprocess.run(
            words, cwd=self.shared_dir, env=self._environment, input=script,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.stderr}{self._logs()}"
        return done.stdout.strip()

    def sbatch(self, script: str, *arguments: str) -> int:
        """Submit a shell script, return the job's ID."""
        text = f"#!/bin/sh\nset -e\n{script}\n"
        printed = self("sbatch", "--parsable", *arguments, script=text)
        return int(printed.partition(";")[0])

    def jobs(self) -> dict[int, dict[str, Any]]:
        """All jobs by ID as ``squeue --json`` has them, finished jobs included for ten minutes."""
        listed = json.loads(self("squeue", "--json", "--states=all"))["jobs"]
        return {job["job_id"]: job for job in listed}

    def state(self, job: int) -> str:
        """State of a job, such as ``RUNNING``."""
        result = self.jobs()[job]["job_state"]
        return str(result if isinstance(result, str) else result[0])  # a list since Slurm 23

    def await_state(self, job: int, *states: str, seconds: float = 30) -> str:
        """Wait until a job is in one of these states; return it."""
        self.await_that(lambda: self.state(job) in states, f"job {job} is not {states}", seconds)
        return self.state(job)

    def await_that(self, ready: Callable[[], bool], complaint: str, seconds: float = 30) -> None:
        """Wait until a condition holds; fail with the complaint and the logs otherwise."""
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, f"{complaint} after {seconds} s{self._logs()}"
            time.sleep(0.1)

    def cancel_all(self) -> None:
        """Cancel all jobs of all users and wait until their nodes are free."""
        self("scancel", *map(str, self.jobs()), check=False)
        self.await_that(lambda: not self("squeue", "-h"), "jobs do not end")

    def _configure(self) -> None:
        for folder in ("run", "state", "log", "shared", *(f"spool/{name}" for name in self.nodes)):
            (self.top / folder).mkdir(parents=True)
        self.top.chmod(0o755)  # other users read the configuration
        self.shared_dir.chmod(0o1777)
        key = self.top / "run/munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname().partition(".")[0]
        port = _free_ports(1 + len(self.nodes))
        ports = f"{port + 1}-{port + len(self.nodes)}"
        text = _CONFIG.read_text().format(
            host=host, port=port, ports=ports, user=user, top=self.top
        )
        # CUDA_VISIBLE_DEVICES is set only if GPUs are character devices.
        for number, device in enumerate(("null", "zero")):
            (self.top / f"gpu{number}").symlink_to(f"/dev/{device}")
        gres = f"AutoDetect=off\nName=gpu Type=h100 File={self.top}/gpu[0-1]\n"
        (self.top / "slurm.conf").write_text(text)
        (self.top / "gres.conf").write_text(gres)
        (self.top / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _spawn(self, program: str, *words: str, name: str = "") -> None:
        result = shutil.which(program, path=_PATH)
        with (self.top / "log" / f"{name or program}.out").open("ab") as out:
            self._daemons[name or program] = subprocess.Popen(
                [result or program, *words], env={**self._environment, "SLURMD_NODENAME": name},
                cwd=self.top, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def _end(self, name: str, number: signal.Signals) -> None:
        if daemon := self._daemons.pop(name, None):
            daemon.send_signal(number)
            daemon.wait(30)

    def _kill_processes(self, name: str = "") -> None:
        """Kill all processes of this cluster, or all on one node.

        A detached process whose environment was cleared is not found.
        """
        while processes := self._processes(name):
            # Stopped first, or slurmstepd reports the end of the job's processes.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in processes:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.02)

    def _processes(self, name: str) -> set[int]:
        conf = f"SLURM_CONF={self.top / 'slurm.conf'}".encode()
        node = f"SLURMD_NODENAME={name}".encode()
        result, children = set(), defaultdict(list)
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                children[int(parent)].append(int(path.name))
                variables = (path / "environ").read_bytes().split(b"\0")
                if conf in variables and (not name or node in variables):
                    result.add(int(path.name))
        unseen = list(result)
        while unseen:
            unseen = [child for pid in unseen for child in children[pid] if child not in result]
            result.update(unseen)
        return result

    def _usable_nodes(self) -> list[str]:
        states = ("-t", "idle,mixed,allocated,completing")
        return self("sinfo", "-h", "-N", "-p", "gpu", *states, "-o", "%N", check=False).split()

    def _logs(self) -> str:
        logs = sorted((self.top / "log").glob("*.log"))
        return "".join(f"\n{log.name}:\n{log.read_text()[-1000:]}" for log in logs)


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Run a cluster in a new directory below the system's temporary one, as paths of sockets are short."""
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as top:
        cluster = SlurmCluster(Path(top))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in secrets.SystemRandom().sample(_PORTS, 1000):
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no free ports")
