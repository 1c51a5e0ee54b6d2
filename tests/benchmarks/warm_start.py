"""From ``apply`` to a running job on a node that has the weights, over a real sshd on 127.0.0.1. Limit: 1 s.

A host gets the weights with a first job; then one job after another is added and applied, from the start of the program
``trainctl apply --auto-approve`` to the moment at which the node began the job's commands (``started_at``, by the same
machine's clock). Beside it stands what the parts cost that no apply can do without: starting ``trainctl``, and two commands by
ssh, one that logs in and one that finds the connection open.

Run: ``python -m tests.benchmarks.warm_start [--rounds 5] [--mib 64]``; exits 1 above the limit. Needs sshd and ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.support.machines.sshd import SSHD, Sshd, SshUser, sshd
from tests.support.projects.project import ProjectHarness, project

LIMIT_SECONDS = 1.0
MANIFEST = """\
project: {name: bench}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
weights: {model: "file:./weights"}
jobs:
JOBS"""
JOB = """\
  job-NUMBER:
    code: ./src
    weights: [model]
    runtime: {start_commands: ["true"]}
"""


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    absent = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    if absent:
        print(f"not measured, it needs {', '.join(absent)}; limit {LIMIT_SECONDS} s")
        return 0
    with tempfile.TemporaryDirectory(prefix="trainctl-warm-") as folder:
        top = Path(folder)
        user = SshUser(top / "user")
        with project(top) as created, sshd(top / "gpu-0", user, address="127.0.0.1") as host:
            user.known_hosts.write_text(host.known)
            created.variables.update(user.environment)
            created.write(
                {"src/nothing.txt": "", "weights/model.bin": os.urandom(options.mib * 2**20)}
            )
            rounds = _rounds(created, host, options.rounds)
            version = _median(lambda: _run(created, "version"), options.rounds)
            login, again = _ssh(top, user, host, options.rounds)
    median = statistics.median(rounds)
    print(
        f"apply to RUNNING on a warm node, {options.mib} MiB of weights: {median:.2f} s (limit {LIMIT_SECONDS:.0f} s; "
        f"{min(rounds):.2f} to {max(rounds):.2f}); trainctl version {version:.2f} s, ssh {login:.2f} s to log in, {again:.2f} s "
        f"by a connection that is open; load {os.getloadavg()[0]:.1f}"
    )
    return 0 if median < LIMIT_SECONDS else 1


def _rounds(project: ProjectHarness, host: Sshd, rounds: int) -> list[float]:
    """The seconds of each apply, after a first one that brings the weights."""
    timestamps = []
    for number in range(rounds + 1):
        jobs = "".join(JOB.replace("NUMBER", str(item)) for item in range(number + 1))
        hosts = json.dumps([host.settings])
        project.write({"trainctl.yaml": MANIFEST.replace("HOSTS", hosts).replace("JOBS", jobs)})
        began = time.time()
        _run(project, "apply", "--auto-approve")
        status = project.json("status", f"job.job-{number}")
        timestamps.append(datetime.fromisoformat(status["started_at"]).timestamp() - began)
    return timestamps[1:]


def _run(project: ProjectHarness, *words: str) -> None:
    """Run the program as a user does, from its start on."""
    with project.start(*words) as process:
        out, err = process.communicate()
    assert process.returncode == 0, (out, err)


def _ssh(top: Path, user: SshUser, host: Sshd, rounds: int) -> tuple[float, float]:
    """Seconds of a command that logs in, and of one that needn't."""
    words = [str(user.place / "bin" / "ssh"), "-p", str(host.port), host.address, "true"]
    shared = [words[0], "-o", f"ControlPath={top / 'master'}", *words[1:]]
    login = _median(lambda: subprocess.run(words, check=True), rounds)
    master = [shared[0], "-o", "ControlMaster=yes", "-o", "ControlPersist=60", *shared[1:]]
    subprocess.run(master, check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    again = _median(lambda: subprocess.run(shared, check=True), rounds)
    subprocess.run(
        [*shared[:-2], "-O", "exit", host.address], check=True, stderr=subprocess.DEVNULL
    )
    return login, again


def _median(work: Callable[[], object], rounds: int) -> float:
    result = []
    for _ in range(rounds):
        began = time.monotonic()
        work()
        result.append(time.monotonic() - began)
    return statistics.median(result)


if __name__ == "__main__":
    sys.exit(main())
