"""Mirroring from a Hub on loopback into a bucket on loopback, beside the least that puts each file, or each chunk of one, by itself.

    python -m tests.benchmarks.bucket_mirror [--mib 512] [--files 2000] [--rounds 3]

The bucket's server is rclone's. Each side is a program of its own (``bucket_mirror_sides``), and rounds take turns; ratios are those of
the medians. The least asks the same engine to put, hashes every byte, and keeps no record of anything.

| figure | limit |
|---|---|
| our rate by that of the least, small files | at least 1.5 |
| our rate by that of the least, one big file | at least 0.85 |
| requests that write, for each thousand small files | at most 10 |
| peak memory, one big file | under 300 MB |

Exits 1 where a limit isn't kept. The machine's load is printed. Needs rclone, which comes with the packages that tests need.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.mirror import SHAPES, serving_hub
from tests.support.servers.buckets import rclone

SMALL_RATIO = 1.5
BIG_RATIO = 0.85
WRITES = 10
BIG_MEMORY_MB = 300


def _run(side: str, *words: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bucket_mirror_sides", side, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    document: dict[str, float] = json.loads(done.stdout)
    return document


def compare(shape: str, amount: int, rounds: int, folder: Path) -> bool:
    """Measure one shape and print it; whether its limits are kept."""
    root = folder / shape
    root.mkdir()
    SHAPES[shape](root, amount)
    files = [path for path in root.rglob("*") if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    result: dict[str, list[dict[str, float]]] = {"least": [], "product": []}
    with serving_hub(root) as url, rclone(folder / f"{shape}-server") as bucket:
        for number in range(rounds):
            for side, each in result.items():
                each.append(_run(side, url, bucket.endpoint, f"{side}-{number}"))
    seconds = {
        side: statistics.median(row["seconds"] for row in each) for side, each in result.items()
    }
    cpu = {side: statistics.median(row["cpu"] for row in each) for side, each in result.items()}
    ratio = seconds["least"] / seconds["product"]
    limit = SMALL_RATIO if shape == "small" else BIG_RATIO
    print(f"{shape}: {len(files)} files, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
    for side in result:
        rate = f"{size / 1e6 / seconds[side]:.0f} MB/s, {len(files) / seconds[side]:.0f} files/s"
        print(f"  {side}: {rate}, {cpu[side]:.2f} s of CPU")
    print(f"  ratio to the least: {ratio:.2f} (limit {limit})")
    kept = ratio >= limit
    if shape == "small":
        writes = result["product"][0]["writes"] / len(files) * 1000
        print(f"  requests that write: {writes:.1f} for each thousand files (limit {WRITES})")
        return kept and writes <= WRITES
    peak = max(row["peak_mb"] for row in result["product"])
    print(f"  peak memory: {peak:.0f} MB (limit {BIG_MEMORY_MB} MB)")
    return kept and peak < BIG_MEMORY_MB


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = compare("small", options.files, options.rounds, folder)
        kept &= compare("big", options.mib, options.rounds, folder)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
