"""Processor time in which a node receives weights from a mirror, beside another build and the least that receives, verifies and writes.

    python -m tests.benchmarks.receive --before DIR/bin/python [--disk DIR] [--mib 1024] [--rounds 3]

Both builds (see ``everyday``) deliver a file of one chunk, then a large one, from a mirror's server in memory to ``--disk``; the
difference of the two counts. The minimal loop is one thread with one buffer. Sides take turns, medians are compared, and after each
delivery the file is looked up in the page cache. Exits 1 above a limit.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from pathlib import Path

from tests.benchmarks.loopback import served
from tests.support.node_program.nodes import MirrorFixture, sent_as
from tests.support.node_program.peers import TOKEN
from trainctl.store import keys

BEFORE_LIMIT, LOOP_LIMIT, CACHED_LIMIT = 0.63, 1.15, 0.01
_MIB = 2**20
_CHUNK = 16 * _MIB
_PROGRAM = """
import os, sys, zlib
from trainctl.remote.archive import INSTALL, RUN, node_archive
os.write(1, f"{node_archive().sha256} {len(INSTALL)} {len(RUN)} ".encode() + INSTALL.encode() + RUN.encode())
sys.stdout.buffer.write(node_archive().data)
"""


class Build:
    """The node program of a build, installed in a directory."""

    def __init__(self, python: Path, directory: Path) -> None:
        printed = subprocess.run([python, "-c", _PROGRAM], cwd="/", capture_output=True, check=True)
        digest, install, run, rest = printed.stdout.split(b" ", 3)
        scripts, data = rest[: int(install) + int(run)].decode(), rest[int(install) + int(run) :]
        program = [str(directory / "program.pyz"), digest.decode()]
        subprocess.run(
            [python, "-c", scripts[: int(install)], *program, str(len(data))],
            input=zlib.compress(data),
            check=True,
        )
        self._command = [
            str(python),
            "-I",
            "-S",
            "-c",
            scripts[int(install) :],
            *program,
            "deliver",
        ]
        self._root = directory / "node"

    def deliver(self, mirror: MirrorFixture, port: int) -> tuple[float, float, Path]:
        """Deliver the one file that the mirror lists; processor seconds, wall seconds and its blob.

        Older builds need the mirror's ``type``.
        """
        request = {
            "root": str(self._root),
            "lineage": "lineage-1",
            "owner": "somebody@somewhere",
            "lease": "run-1",
            "source": "file:./weights",
            "listing": json.loads(mirror.listing.to_bytes()),
            "mirror": {"type": "objects", "urls": [f"http://127.0.0.1:{port}"], "token": TOKEN},
        }
        before, began = _seconds(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(self._command, input=sent_as(request), check=True, stdout=subprocess.PIPE)
        wall = time.monotonic() - began
        blob = self._root / "cache" / keys.blob(mirror.listing.files[0].sha256)
        return _seconds(resource.RUSAGE_CHILDREN) - before, wall, blob


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, default=Path(sys.executable), help="its python")
    parser.add_argument("--disk", type=Path, default=None)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--mib", type=int, default=1024, help="of the large file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        return _loop(*options.loop)
    with (
        tempfile.TemporaryDirectory(dir=options.memory) as memory,
        tempfile.TemporaryDirectory(dir=options.disk) as disk,
    ):
        costs, cached = _measure(Path(memory), Path(disk), options)
    seconds = {name: statistics.median(items) for name, items in costs.items()}
    ours = seconds["ours"]
    before, loop = ours / seconds["before"], ours / seconds["loop"]
    print(
        f"one node receives {options.mib} MiB: {ours:.2f} processor seconds a GB, ratio to {seconds['before']:.2f} of the other "
        f"build {before:.2f} (limit {BEFORE_LIMIT}), to {seconds['loop']:.2f} of a minimal loop {loop:.2f} (limit {LOOP_LIMIT}); "
        f"{cached:.0%} in the page cache (limit {CACHED_LIMIT:.0%})\n    {seconds['ours wall']:.2f} s, ratio to the other build "
        f"{seconds['ours wall'] / seconds['before wall']:.2f} (no limit, it is the disk's); load {os.getloadavg()[0]:.1f}"
    )
    return 0 if before <= BEFORE_LIMIT and loop <= LOOP_LIMIT and cached <= CACHED_LIMIT else 1


def _measure(
    memory: Path, disk: Path, options: argparse.Namespace
) -> tuple[dict[str, list[float]], float]:
    """Processor seconds a GB of each side in each round, and the part of our file in the page cache."""
    small, large = MirrorFixture(memory / "mirror"), MirrorFixture(memory / "mirror")
    small.add("small.bin", os.urandom(_MIB))
    large.add("large.bin", os.urandom(options.mib * _MIB))
    large.files.clear()
    chunks = ",".join(chunk.sha256 for chunk in large.rows["large.bin"].chunk_ranges)
    loop = [sys.executable, "-m", "tests.benchmarks.receive", "--loop"]
    cached = 0.0
    costs: dict[str, list[float]] = defaultdict(list)
    for name in ("before", "ours"):
        (disk / name).mkdir()
    builds = {
        "before": Build(options.before.absolute(), disk / "before"),
        "ours": Build(Path(sys.executable), disk / "ours"),
    }
    with served(large) as port:
        for _ in range(options.rounds):
            for name, build in builds.items():
                least = build.deliver(small, port)[0]
                cost, wall, blob = build.deliver(large, port)
                costs[name].append((cost - least) * 1e9 / (options.mib * _MIB))
                costs[f"{name} wall"].append(wall)
                cached = _cached(blob)
                subprocess.run(["rm", "-rf", disk / name / "node"], check=True)
            printed = subprocess.run(
                [*loop, str(port), chunks, str(disk / "copy")], check=True, stdout=subprocess.PIPE
            ).stdout
            costs["loop"].append(float(printed) * 1e9 / (options.mib * _MIB))
    return costs, cached


def _seconds(which: int) -> float:
    used = resource.getrusage(which)
    return used.ru_utime + used.ru_stime


def _cached(blob: Path) -> float:
    """The part of a file that is in the page cache; see mincore(2), which reads nothing."""
    with blob.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
    first = ctypes.c_char.from_buffer(mapped)
    assert not ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages)
    return sum(page & 1 for page in pages) / len(pages)


def _loop(port: str, chunks: str, target: str) -> int:
    """The minimal loop: receive a chunk, hash it while it is in the processor's cache, write it, sync at the end."""
    mapping = mmap.mmap(-1, _CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    buffer = memoryview(mapping)
    connection = socket.create_connection(("127.0.0.1", int(port)))
    began = _seconds(resource.RUSAGE_SELF)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(target, flags | os.O_DIRECT, 0o600)
    except OSError:
        descriptor = os.open(target, flags, 0o600)
    for number, sha256 in enumerate(chunks.split(",")):
        request = f"GET /{keys.blob(sha256)} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        connection.sendall(request.encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        digest = hashlib.sha256()
        for start in range(0, length, _MIB):
            piece = buffer[start : min(start + _MIB, length)]
            connection.recv_into(piece, 0, socket.MSG_WAITALL)
            digest.update(piece)
        if digest.hexdigest() != sha256:
            sys.exit("the minimal loop received something else")
        os.pwrite(descriptor, buffer[:length], number * _CHUNK)
    os.fsync(descriptor)
    print(_seconds(resource.RUSAGE_SELF) - began)
    Path(target).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
