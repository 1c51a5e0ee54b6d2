"""What people type every day, beside another build of trainctl: processor time and wall time of the whole process.

    python -m tests.benchmarks.everyday --before DIR/bin/trainctl [--rounds 9]

The other build is installed in a virtual environment of its own (``git worktree add DIR/src COMMIT``, ``python -m venv DIR``,
``DIR/bin/pip install -e DIR/src``). Each build has the quickstart's project, applied and at its end; the commands run in turn,
one build after the other, and the medians count, with all processes that a command waited for. Limits are ratios to the
build of commit f680e143; exits 1 above one of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
LIMITS = {
    "plan": 0.50,
    "status": 0.50,
    "logs job.train": 0.50,
    "nodes list": 0.50,
    "validate": 0.60,
    "--help": 0.60,
    "complete job.": 0.60,
    "apply until RUNNING": 0.70,
}
_COMPLETION = {
    "_TRAINCTL_COMPLETE": "complete_bash",
    "COMP_WORDS": "trainctl logs job.",
    "COMP_CWORD": "2",
}


class Taken(NamedTuple):
    """Seconds of one process: of processors, and by the clock."""

    processor: float
    wall: float


class Side:
    """A build with a project of its own."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._project = directory / "project"
        places = {
            f"XDG_{name}_HOME": str(directory / name)
            for name in ("DATA", "CACHE", "STATE", "CONFIG")
        }
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRAINCTL"))
        }
        self._environment = {**inherited, **places, "HOME": str(directory)}
        self._rate = 1.0
        shutil.copytree(QUICKSTART, self._project)
        self.run(["apply", "--auto-approve", "--wait"])

    def run(self, words: list[str], **variables: str) -> Taken:
        """Run a command and return what it took."""
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(self._program), *words],
            cwd=self._project,
            env={**self._environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{words} ended with {process.returncode}:\n{output.decode()}")
        return Taken(usage.ru_utime + usage.ru_stime, wall)

    def measure(self, command: str) -> Taken:
        """Run a command of the table."""
        if command == "complete job.":
            return self.run([], **_COMPLETION)
        if (
            command == "apply until RUNNING"
        ):  # the weights are on the node; it returns when the run has begun
            self._rate /= 2
            taken = self.run(["apply", "--auto-approve", "--var", f"lr={self._rate}"])
            self.run(["logs", "job.train", "--follow"])  # to its end
            return taken
        return self.run(command.split())


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ours = Path(sys.executable).with_name("trainctl")
    medians: dict[tuple[str, int], Taken] = {}
    with tempfile.TemporaryDirectory(prefix="trainctl-everyday-") as scratch:
        programs = (options.before.absolute(), ours)
        sides = [Side(program, Path(scratch) / str(n)) for n, program in enumerate(programs)]
        taken: dict[tuple[str, int], list[Taken]] = defaultdict(list)
        for _ in range(options.rounds + 1):
            for command in LIMITS:
                for number, side in enumerate(sides):
                    taken[command, number].append(side.measure(command))
        for key, values in taken.items():
            counted = values[1:]  # the first run fills caches
            medians[key] = Taken(
                *(statistics.median(column) for column in zip(*counted, strict=True))
            )
    kept = True
    print("command                 processor s     ratio   wall s          ratio   limit")
    for command, limit in LIMITS.items():
        before, now = medians[command, 0], medians[command, 1]
        ratios = [now[n] / before[n] for n in range(2)]
        print(
            f"{command:<20}  {before[0]:6.3f} → {now[0]:5.3f}  {ratios[0]:6.2f}"
            f"  {before[1]:6.3f} → {now[1]:5.3f}  {ratios[1]:6.2f}  {limit:6.2f}"
        )
        kept = kept and max(ratios) <= limit
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
