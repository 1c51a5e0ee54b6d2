"""How long ``trainctl version`` takes beside ``python -c pass``, both in one go.

    python -m tests.benchmarks.startup [ROUNDS]

The limit is 150 ms on a machine where ``python -c pass`` takes 36 ms: 4.2 times as long.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 150 / 36


def main(rounds: int = 15) -> None:
    """Run the two in turn and print their medians, the ratio and the limit."""
    program = str(Path(sys.executable).with_name("trainctl"))
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "trainctl version": [program, "version"],
        "trainctl --help": [program, "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<18} {median * 1000:6.1f} ms")
    ratio = medians["trainctl version"] / medians["python -c pass"]
    print(f"version / pass     {ratio:6.2f}  (limit {LIMIT:.2f})")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
