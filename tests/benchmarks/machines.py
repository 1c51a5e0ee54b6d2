"""Machines by a Terraform module: many created at once, against one. Each takes some seconds to boot, as in a cloud.

python -m tests.benchmarks.machines [--nodes 10] [--boot 20] [--rounds 1]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.machines.terraform import LOOPBACK, write_terraform
from tests.support.projects.project import project

LIMIT = 1.5
_MANIFEST = """
project: {{name: machines}}
clusters:
  gpu: {{provider: terraform, module: {module}, nodes: {nodes}, variables: {{directory: {place}, boot_seconds: {boot}}}}}
"""


def seconds(nodes: int, boot: int) -> float:
    """Create machines, and return how long apply took; they are destroyed afterwards."""
    with tempfile.TemporaryDirectory() as top, project(Path(top)) as made:
        write_terraform(made.directory.parent / "bin")
        made.variables["PATH"] = f"{made.directory.parent / 'bin'}:{made.environment['PATH']}"
        values = {"module": LOOPBACK, "place": Path(top) / "machines", "nodes": nodes, "boot": boot}
        made.write({"trainctl.yaml": _MANIFEST.format(**values)})
        made.trust(policies='[[terraform]]\nmodules = ["*"]\n')
        made.run("plan", "--out", "p.bin", seconds=600)
        started = time.perf_counter()
        made.run("apply", "p.bin", seconds=600)
        took = time.perf_counter() - started
        made.run("destroy", "--auto-approve", seconds=600)
        for machine in (Path(top) / "machines").glob("*"):
            subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)
    return took


def main() -> int:
    """Print the figures; 1 if the limit is exceeded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--boot", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    one = min(seconds(1, options.boot) for _ in range(options.rounds))
    many = min(seconds(options.nodes, options.boot) for _ in range(options.rounds))
    ratio = many / one
    print(f"1 machine: {one:.1f} s, {options.nodes} at once: {many:.1f} s")
    print(f"ratio to one machine {ratio:.2f}, limit {LIMIT}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
