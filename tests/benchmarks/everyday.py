"""What people type every day, beside another build of trainctl: processor time and wall time of the whole process.

    python -m tests.benchmarks.everyday --before DIR/bin/trainctl [--rounds 9]

The other build is installed in a virtual environment of its own (``git worktree add DIR/src COMMIT``, ``python -m venv DIR``,
``DIR/bin/pip install -e DIR/src``). Each build has the quickstart's project, applied and at its end; the commands run in turn,
one build after the other, and the medians count, with all processes that a command waited for. Limits are ratios to the
build of commit f680e143; exits 1 above one of them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.benchmarks.terraform import Cost, measured

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
_COMPLETION = (
    "_TRAINCTL_COMPLETE=complete_bash",
    "COMP_WORDS=trainctl logs job.",
    "COMP_CWORD=2",
)


class Side:
    """A build with a project of its own."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._rate = 1.0
        shutil.copytree(QUICKSTART, directory)
        self.run("apply", "--auto-approve", "--wait")

    def run(self, *words: str) -> Cost:
        """Run a command and return what it took."""
        return measured([str(self._program), *words], self._directory)

    def measure(self, command: str) -> Cost:
        """Run a command of the table."""
        if command == "complete job.":
            return measured(["env", *_COMPLETION, str(self._program)], self._directory)
        if command != "apply until RUNNING":
            return self.run(*command.split())
        self._rate /= 2  # a new run, whose weights are on the node; apply returns when it has begun
        cost = self.run("apply", "--auto-approve", "--var", f"lr={self._rate}")
        self.run("logs", "job.train", "--follow")  # to its end
        self.run(
            "apply", "--auto-approve"
        )  # takes the first run again, so that the next plan has no changes
        return cost


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ours = Path(sys.executable).with_name("trainctl")
    with tempfile.TemporaryDirectory(prefix="trainctl-everyday-") as scratch:
        programs = (options.before.absolute(), ours)
        sides = [Side(program, Path(scratch) / str(n)) for n, program in enumerate(programs)]
        costs: dict[tuple[str, int], list[Cost]] = defaultdict(list)
        for round_ in range(options.rounds + 1):
            for command in LIMITS:
                for number, side in enumerate(sides):
                    cost = side.measure(command)
                    if round_:  # the first one fills caches
                        costs[command, number].append(cost)
    kept = True
    print("command                 processor s     ratio   wall s          ratio   limit")
    for command, limit in LIMITS.items():
        processor, wall = (
            [statistics.median(map(figure, costs[command, number])) for number in range(2)]
            for figure in (lambda cost: cost.user + cost.system, lambda cost: cost.wall)
        )
        ratios = [now / before for before, now in (processor, wall)]
        print(
            f"{command:<20}  {processor[0]:6.3f} → {processor[1]:5.3f}  {ratios[0]:6.2f}"
            f"  {wall[0]:6.3f} → {wall[1]:5.3f}  {ratios[1]:6.2f}  {limit:6.2f}"
        )
        kept = kept and max(ratios) <= limit
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
