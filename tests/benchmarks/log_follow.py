"""``logs --follow`` of a job that writes 100,000 lines a second, beside ``ssh HOST cat`` of the same bytes, over a real sshd.

    python -m tests.benchmarks.log_follow [--seconds 20] [--rounds 3] [--memory /dev/shm]

The job writes for so long and is followed meanwhile: the delay after its last line must be short. Then the whole log is followed
once more and printed by ``cat``, both into files in memory, in turn, and each beside one that prints nothing: the ratio of their
rates (medians of wall time beyond those) has a limit. Processor time is that on the client's side, with ssh. Exits 1 where a
limit is not kept. Needs sshd and ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.support.machines.sshd import SSHD, Sshd, SshUser, sshd
from tests.support.projects.project import ProjectHarness, project

LIMIT, DELAY_LIMIT = 0.8, 2.0
RATE = 100_000
MANIFEST = """\
project: {name: bench}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  talk: {code: ./src, runtime: {start_commands: ["python3 talk.py SECONDS"]}}
"""
JOB = f"""\
import sys, time
began, line = time.monotonic(), 0
while (now := time.monotonic() - began) < float(sys.argv[1]):
    until = int(now * {RATE})
    sys.stdout.write("".join(f"{{n:>10}} step of an epoch: loss 0.123456, learning rate 0.0003, 1234.5 samples/s\\n" for n in range(line, until)))
    sys.stdout.flush()
    line = until
    time.sleep(0.01)
"""


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="for which the job writes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    absent = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    if absent:
        print(f"not measured, it needs {', '.join(absent)}; limit {LIMIT}")
        return 0
    with tempfile.TemporaryDirectory(prefix="trainctl-log-", dir=options.memory) as folder:
        top = Path(folder)
        user = SshUser(top / "user")
        with project(top) as created, sshd(top / "gpu-0", user, address="127.0.0.1") as host:
            user.known_hosts.write_text(host.known)
            created.variables.update(user.environment)
            created.forks = False
            hosts, seconds = json.dumps([host.settings]), str(options.seconds)
            manifest = MANIFEST.replace("HOSTS", hosts).replace("SECONDS", seconds)
            created.write({"trainctl.yaml": manifest, "src/talk.py": JOB})
            created.run("apply", "--auto-approve")
            follow = [sys.executable, "-m", "trainctl", "logs", "job.talk", "--follow"]
            _measured(created, follow, top / "followed")
            now = time.time()
            ended = created.json("status", "job.talk")["ended_at"]
            delay = now - datetime.fromisoformat(ended).timestamp()
            (log,) = host.home.rglob("rank-0.log")
            works = {"ours": follow, "cat": _cat(user, host, log)}
            least = {"ours": [*follow, "--tail", "0"], "cat": _cat(user, host, Path("/dev/null"))}
            costs: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
            for _ in range(options.rounds):
                for name, work in works.items():
                    before = _measured(created, least[name], top / name)
                    after = _measured(created, work, top / name)
                    costs[name].append((after[0] - before[0], after[1] - before[1]))
            size = log.stat().st_size
            assert {(top / name).stat().st_size for name in ("followed", *works)} == {size}
    rates, processor = (
        {name: statistics.median(item[which] for item in items) for name, items in costs.items()}
        for which in range(2)
    )
    rates = {name: size / seconds / 1e6 for name, seconds in rates.items()}
    ratio = rates["ours"] / rates["cat"]
    print(
        f"logs --follow of {size / 1e6:.0f} MB: {rates['ours']:.0f} MB/s, ratio to ssh cat ({rates['cat']:.0f} MB/s) {ratio:.2f} "
        f"(limit {LIMIT}); at {RATE:,} lines a second it ended {delay:.1f} s after the job (limit {DELAY_LIMIT} s); "
        f"processor seconds a GB: {processor['ours'] * 1e9 / size:.1f} and {processor['cat'] * 1e9 / size:.1f} of ssh cat; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return 0 if ratio >= LIMIT and delay <= DELAY_LIMIT else 1


def _measured(project: ProjectHarness, words: list[str], output: Path) -> tuple[float, float]:
    """Seconds of wall and processor time in which a program prints everything into a file."""
    began, before = time.monotonic(), _processor_seconds()
    with output.open("wb") as stream:
        subprocess.run(
            words, cwd=project.directory, env=project.environment, stdout=stream, check=True
        )
    return time.monotonic() - began, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cat(user: SshUser, host: Sshd, log: Path) -> list[str]:
    ssh = [str(user.place / "bin" / "ssh"), "-p", str(host.port), host.address]
    return [*ssh, f"cat {log}"]


if __name__ == "__main__":
    sys.exit(main())
