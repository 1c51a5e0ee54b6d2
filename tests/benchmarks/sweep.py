"""A sweep of 96 jobs: planned, applied four at a time, and what it costs in memory and disk beside one of 12.

    python -m tests.benchmarks.sweep [--jobs 96] [--small 12] [--seconds 0.2]

Limits: a plan of 96 jobs takes less than a second, or less than 3 times ``trainctl version`` and a plan of one job together where
the machine is slow or busy; the peak memory of apply grows by less than 1.3 times from the small sweep to the large; so does
the disk that node and mirror take for all runs together, which leaves each run's own copy of the code and its log; a supervisor that
waits takes less than 12 MiB, and its run less than 64 KiB on disk. All runs wait for a gate that opens after apply has returned.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.projects.project import ProjectHarness, project

PLAN_SECONDS = 1.0
PLAN_RATIO = 3.0
GROWTH = 1.3
WAITING_MIB = 12.0
WAITING_KIB = 64.0
WEIGHTS_BYTES = 8 * 2**20
MANIFEST = """\
project: {{name: bench}}
jobs:
  sweep:
    code: ./src
    matrix:
      lr: [{rates}]
      seed: [1, 2]
    max_parallel: 4
    weights: ["file:./weights"]
    runtime: {{start_commands: ["python3 train.py ${{{{ matrix.lr }}}} ${{{{ matrix.seed }}}} {seconds} {gate}"]}}
"""
TRAIN = """\
import os, sys, time
while not os.path.exists(sys.argv[4]):
    time.sleep(0.05)
print("begin", time.monotonic(), flush=True)
time.sleep(float(sys.argv[3]))
print("end", time.monotonic(), flush=True)
"""


@dataclass
class Taken:
    """What one sweep took."""

    plan_seconds: float
    apply_seconds: float
    rest_seconds: float
    peak_mib: float
    waiting_mib: list[float]
    waiting_kib: float
    idle_percent: float
    at_once: int
    disk: int
    runs_disk: int


def main(jobs: int, small: int, seconds: float) -> int:
    """Run both sweeps and print each figure with its limit; the exit code is 1 if one is beyond it."""
    few, many = measure(small, seconds), measure(jobs, seconds)
    item = planned(1)
    print(f"plan of {jobs} jobs          {many.plan_seconds:7.2f} s   (of 1 job {item:.2f} s)")
    print(
        f"apply of {jobs} jobs         {many.apply_seconds:7.1f} s   (of {small} jobs {few.apply_seconds:.1f} s)"
    )
    waiting = max(many.waiting_mib, default=0.0)
    print(f"rest, 4 at a time         {many.rest_seconds:7.1f} s   (jobs of {seconds} s)")
    figures = [
        ("plan, seconds", many.plan_seconds, max(PLAN_SECONDS, PLAN_RATIO * item)),
        ("runs at once", float(many.at_once), 4.0),
        (f"peak RSS of apply, {jobs} beside {small} jobs", many.peak_mib / few.peak_mib, GROWTH),
        (f"disk without records, {jobs} beside {small} jobs", many.disk / few.disk, GROWTH),
        ("MiB of a waiting supervisor (PSS, worst)", waiting, WAITING_MIB),
        ("KiB on disk of a waiting run", many.waiting_kib, WAITING_KIB),
    ]
    print(f"peak RSS of apply        {few.peak_mib:7.1f} MiB -> {many.peak_mib:.1f} MiB")
    print(f"disk, shared             {few.disk / 2**20:7.1f} MiB -> {many.disk / 2**20:.1f} MiB")
    print(
        f"disk, a run's own at end {many.runs_disk / jobs / 1024:7.1f} KiB (its copy of 1 MiB of code, its log)"
    )
    print(
        f"supervisors waiting      {len(many.waiting_mib):7d}       (together {many.idle_percent:.1f} % of a processor)"
    )
    for name, value, limit in figures:
        print(f"{name:<52} {value:8.2f}  (limit {limit:.2f})")
    return int(any(value > limit for _, value, limit in figures))


def measure(jobs: int, seconds: float) -> Taken:
    """Plan and apply one sweep in a project of its own, to the end of its last run."""
    with tempfile.TemporaryDirectory(prefix="trainctl-sweep-") as base, project(Path(base)) as demo:
        write(demo, jobs, seconds)
        began = time.perf_counter()
        demo.run("plan")
        plan_seconds = time.perf_counter() - began
        began = time.perf_counter()
        peak = apply(demo)
        apply_seconds = time.perf_counter() - began
        waiting = waiting_runs(demo)
        waiting_kib = max((size(item.directory) / 1024 for item in waiting), default=0.0)
        waiting_mib = [of_process(item.pid, "smaps_rollup", "Pss") for item in waiting]
        percent = processor(waiting)
        runs = demo.nodes / "local-0" / "runs"
        began = time.perf_counter()
        gate(demo).touch()
        while len(list(runs.glob("*/run.json"))) < jobs or not all(map(ended, runs.iterdir())):
            time.sleep(0.1)
        rest = time.perf_counter() - began
        logs = [path.read_text().split() for path in runs.glob("*/log/rank-0.log")]
        assert len(logs) == jobs
        own = size(runs)
        shared = size(demo.nodes) + size(demo.mirror) - own
        return Taken(
            plan_seconds,
            apply_seconds,
            rest,
            peak,
            waiting_mib,
            waiting_kib,
            percent,
            at_once(logs),
            shared,
            own,
        )


def planned(jobs: int) -> float:
    """The seconds that planning so many jobs takes."""
    with tempfile.TemporaryDirectory(prefix="trainctl-sweep-") as base, project(Path(base)) as demo:
        write(demo, jobs, 0.0)
        began = time.perf_counter()
        demo.run("plan")
        return time.perf_counter() - began


def write(project: ProjectHarness, jobs: int, seconds: float) -> None:
    """The manifest, code of 1 MiB and weights of 8 MiB. Commands are timed from the start of a program."""
    project.forks = False
    rates = ", ".join(f"{number}e-5" for number in range(1, max(jobs // 2, 1) + 1))
    manifest = MANIFEST.format(rates=rates, seconds=seconds, gate=gate(project))
    if jobs == 1:
        manifest = manifest.replace("[1, 2]", "[1]")
    project.write(
        {
            "trainctl.yaml": manifest,
            "src/train.py": TRAIN,
            "src/data.bin": os.urandom(2**20),
            "weights/model.bin": os.urandom(WEIGHTS_BYTES),
        }
    )


def gate(project: ProjectHarness) -> Path:
    """What every job waits for."""
    return project.directory.parent / "gate"


def apply(project: ProjectHarness) -> float:
    """Apply; its peak memory in MiB."""
    peak = 0.0
    with project.start("apply", "--auto-approve", "--parallelism", "4") as process:
        reader = threading.Thread(target=process.communicate)
        reader.start()
        while process.poll() is None:
            peak = max(peak, of_process(process.pid, "status", "VmHWM"))
            time.sleep(0.02)
        reader.join()
    assert process.returncode == 0
    return peak


@dataclass
class Waiting:
    """A run that waits."""

    pid: int
    directory: Path


def waiting_runs(project: ProjectHarness) -> list[Waiting]:
    """The runs that wait on the node, and who supervises them."""
    result = []
    for directory in (project.nodes / "local-0" / "runs").iterdir():
        if json.loads((directory / "run.json").read_text())["status"] == "TRAINING_JOB_PENDING":
            claim = json.loads((directory / "claim.1").read_text())
            result.append(Waiting(claim["pid"], directory))
    return result


def ended(directory: Path) -> bool:
    """Whether the run in a directory has ended."""
    return json.loads((directory / "run.json").read_text()).get("ended_at") is not None


def processor(waiting: list[Waiting], seconds: float = 5.0) -> float:
    """How much of one processor, in percent, they all take together while nothing happens."""
    before = sum(ticks(item.pid) for item in waiting)
    time.sleep(seconds)
    return (
        (sum(ticks(item.pid) for item in waiting) - before)
        / os.sysconf("SC_CLK_TCK")
        / seconds
        * 100
    )


def ticks(pid: int) -> int:
    """The processor time of a process, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def of_process(pid: object, file: str, name: str) -> float:
    """A figure of /proc in MiB; 0 of a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0.0
    return next(
        (int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(f"{name}:")),
        0.0,
    )


def at_once(logs: list[list[str]]) -> int:
    """The most runs that went on at the same time."""
    steps = [(float(words[1]), 1) for words in logs] + [(float(words[3]), -1) for words in logs]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def size(path: Path) -> int:
    """The bytes that a directory takes on disk, each inode once."""
    done = subprocess.run(
        ["du", "-s", "-B1", str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=96)
    parser.add_argument("--small", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.2)
    given = parser.parse_args()
    sys.exit(main(given.jobs, given.small, given.seconds))
