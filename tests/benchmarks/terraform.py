"""Applying and planning N resources without side effects, beside Terraform doing the same where it is installed.

    python -m tests.benchmarks.terraform [SIZE …] [--rounds 1] [--terraform-up-to 1000] [--before TRAINCTL]

Each resource has ten attributes: here a project with a name, a description and eight labels, there a ``terraform_data`` with an
object of ten. Both sides keep their state in a local file and run in turn, each command in a process of its own; the least wall time
of the rounds is compared, as it is what other work on the machine disturbs least. After both the description of one resource changes, and
all is planned and applied again. Terraform writes its whole state after each resource: 10,000 would take an hour, so it stops at
``--terraform-up-to``. ``100000`` has limits, too, but takes minutes. Prints every figure, each ratio with its limit, and exits 1 where a limit
is not kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SIZES = (10, 100, 1_000, 10_000)
RATIOS = {"apply": 50.0, "no-op plan": 5.0}
"""How many times as fast as Terraform, at 1,000 resources."""
CHANGE = "change of one"
SECONDS = {
    10_000: {"apply": 5.0, "no-op plan": 5.0},
    100_000: {"no-op plan": 6.0, CHANGE: 8.0},
}
PEAK_MB = {10_000: 500.0, 100_000: 450.0}
"""Of a no-op plan."""
FLAT = 1.25
"""Most that a resource between 1,000 and 10,000 costs in CPU, of what one between 100 and 1,000 does."""
ELSEWHERE = {1_000: {"apply": 42.5, "no-op plan": 2.5}}
"""Least wall seconds of Terraform 1.11.4 on two cores, for a machine that hasn't got it."""
PER_FILE = 2_000
"""Resources in one manifest file, which may have 1 MiB."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: seconds of wall, of user and of system CPU, and its peak of memory."""

    wall: float
    user: float
    system: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Side:
    """One program: what it is declared to in a directory, and its commands."""

    name: str
    declare: Callable[[Path, int], None]
    commands: dict[str, list[str]]
    prepare: list[str] | None = None


def measured(command: list[str], directory: Path) -> Cost:
    """Run a command to its end, its output into a file."""
    with (directory / "output").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=directory, env=_environment(directory), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(directory / 'output').read_text()[-2000:]}")
    return Cost(wall, used.ru_utime, used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def _environment(directory: Path) -> dict[str, str]:
    homes = {"HOME": "", "XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache"}
    own = {name: str(directory / place) for name, place in homes.items()}
    return {"PATH": os.environ["PATH"], "CHECKPOINT_DISABLE": "1", **own}


def declare_projects(directory: Path, size: int) -> None:
    """A manifest of so many projects."""
    for first in range(0, size, PER_FILE):
        lines = ["projects:"]
        for number in range(first, min(size, first + PER_FILE)):
            lines += [f"  p{number}:", f"    description: number {number}", "    labels:"]
            lines += [f"      label{each}: value {each} of {number}" for each in range(8)]
        name = f"part-{first // PER_FILE}.trainctl.yaml"
        (directory / name).write_text("\n".join(lines) + "\n")


def declare_data(directory: Path, size: int) -> None:
    """A module of so many ``terraform_data``."""
    lines = []
    for number in range(size):
        lines += [f'resource "terraform_data" "p{number}" {{', "  input = {"]
        lines += [f'    name = "p{number}"', f'    description = "number {number}"']
        lines += [f'    label{each} = "value {each} of {number}"' for each in range(8)]
        lines += ["  }", "}"]
    (directory / "main.tf").write_text("\n".join(lines) + "\n")


def trainctl(name: str, program: str) -> Side:
    """A build of trainctl."""
    apply = [program, "apply", "--auto-approve"]
    return Side(
        name, declare_projects, {"apply": apply, "no-op plan": [program, "plan"], CHANGE: apply}
    )


TRAINCTL = trainctl("trainctl", str(Path(sys.executable).with_name("trainctl")))
TERRAFORM = Side(
    "terraform",
    declare_data,
    {
        "apply": ["terraform", "apply", "-no-color", "-auto-approve"],
        "no-op plan": ["terraform", "plan", "-no-color"],
        CHANGE: ["terraform", "apply", "-no-color", "-auto-approve"],
    },
    ["terraform", "init", "-no-color"],
)


def once(side: Side, size: int) -> dict[str, Cost]:
    """Apply from nothing, plan again, then change one resource: the cost of each."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        side.declare(directory, size)
        if side.prepare:
            measured(side.prepare, directory)
        costs = {}
        for step, command in side.commands.items():
            if step == CHANGE:
                file = next(directory.glob("part-0.*"), directory / "main.tf")
                file.write_text(file.read_text().replace("number 0", "number zero", 1))
            costs[step] = measured(command, directory)
        return costs


def least(rounds: list[dict[str, Cost]]) -> dict[str, Cost]:
    """Of each step the least of everything."""
    return {
        step: Cost(
            min(item[step].wall for item in rounds),
            min(item[step].user for item in rounds),
            min(item[step].system for item in rounds),
            min(item[step].peak_mb for item in rounds),
        )
        for step in rounds[0]
    }


def compare(size: int, sides: list[Side], rounds: int) -> dict[str, dict[str, Cost]]:
    """All sides in turn, round by round; prints what each took."""
    result: dict[str, list[dict[str, Cost]]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            result[side.name].append(once(side, size))
    costs = {name: least(taken) for name, taken in result.items()}
    for name, steps in costs.items():
        for step, cost in steps.items():
            figures = f"{cost.wall:8.2f} s  user {cost.user:7.2f} s  {cost.peak_mb:5.0f} MB"
            print(f"{size:6,}  {step:<13}  {name:<9}  {figures}", flush=True)
    return costs


Verdict = tuple[str, bool]


def beside_terraform(size: int, costs: dict[str, dict[str, Cost]]) -> Iterator[Verdict]:
    """How many times as fast, with the limit at the size that has one."""
    for step, ours in costs["trainctl"].items():
        if "terraform" in costs:
            theirs, where = costs["terraform"][step].wall, ""
        elif step in ELSEWHERE.get(size, {}):
            theirs, where = ELSEWHERE[size][step], " (Terraform as measured elsewhere)"
        else:
            continue
        ratio = theirs / ours.wall
        limit = RATIOS.get(step) if size == 1_000 else None
        text = f"(limit {limit:g})" if limit else "(no limit at this size)"
        yield f"{size:6,}  {step}: {ratio:.1f} times as fast {text}{where}", ratio >= (limit or 0)


def beside_before(size: int, costs: dict[str, dict[str, Cost]]) -> Iterator[Verdict]:
    """The processor time of an earlier build, if there is one; no step may take more."""
    for step, cost in costs.get("before", {}).items():
        now, before = (each.user + each.system for each in (costs["trainctl"][step], cost))
        yield f"{size:6,}  {step}: {now / before:.2f} of before (limit 1.05)", now <= before * 1.05


def by_itself(size: int, costs: dict[str, Cost]) -> Iterator[Verdict]:
    """What has an absolute limit at this size."""
    for step, limit in SECONDS.get(size, {}).items():
        wall = costs[step].wall
        yield f"{size:6,}  {step}: {wall:.2f} s (limit {limit:g} s)", wall < limit
    if size in PEAK_MB:
        peak = costs["no-op plan"].peak_mb
        limit = PEAK_MB[size]
        yield f"{size:6,}  no-op plan: {peak:.0f} MB (limit {limit:.0f} MB)", peak < limit


def flatness(ours: dict[int, dict[str, Cost]]) -> Iterator[Verdict]:
    """Whether one more resource costs the same CPU, however many there are."""
    for step in RATIOS:
        few, many, most = (ours[size][step].user for size in (100, 1_000, 10_000))
        below, above = (many - few) / 900 * 1000, (most - many) / 9_000 * 1000
        text = f"{above:.2f} ms of CPU a resource above 1,000, {below:.2f} below"
        yield f"{step}: {text}, ratio {above / below:.2f} (limit {FLAT})", above <= below * FLAT


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--terraform-up-to", type=int, default=1_000)
    parser.add_argument("--before", help="another build's trainctl, in turn with this one")
    options = parser.parse_args()
    installed = shutil.which("terraform") is not None
    if not installed:
        print("terraform is not installed: only trainctl is measured here")
    builds = [TRAINCTL, *([trainctl("before", options.before)] if options.before else [])]
    for build in builds:
        once(build, 1)  # leaves its bytecode behind, as an installation does
    ours: dict[int, dict[str, Cost]] = {}
    verdicts: list[Verdict] = []
    for size in options.sizes:
        both = installed and size <= options.terraform_up_to
        costs = compare(size, [*builds, TERRAFORM] if both else builds, options.rounds)
        ours[size] = costs["trainctl"]
        verdicts += [*beside_terraform(size, costs), *beside_before(size, costs)]
        verdicts += by_itself(size, costs["trainctl"])
    if {100, 1_000, 10_000} <= ours.keys():
        verdicts += flatness(ours)
    for line, _ in verdicts:
        print(line)
    return 0 if all(kept for _, kept in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
