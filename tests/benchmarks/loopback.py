"""One node over loopback: large files, small files, and what is written to its disk.

Large files stand beside a minimal loop that receives, hashes and writes the same (limit: 0.85 of its speed) and beside ``scp`` (2
times its speed; Debian: openssh-client, openssh-server); small ones have a limit of 5000 a second. All of that is in memory. On the
disk the same delivery, everything synced, stands beside a loop that writes and syncs as many bytes and does nothing else, and
beside what the service publishes for its nodes' storage, 1.2 to 1.8 GB/s written. Sides take turns; medians are compared.

Run: ``python -m tests.benchmarks.loopback``; exits 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.machines.sshd import SSHD, SshUser, sshd
from tests.support.node_program.nodes import MirrorFixture, NodeHarness
from tests.support.node_program.peers import TOKEN
from tests.support.storage.mirrors import MemorySource, ingest, mirror_at
from trainctl.base.filesystem.files import write_at
from trainctl.store import keys

SPEED_LIMIT, SCP_LIMIT, SMALL_LIMIT = 0.85, 2.0, 5000
_PIECE = 2**20
_SMALL_BYTES = 16 * 1024
Works = Mapping[str, Callable[[], float]]


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024, help="of the large file")
    parser.add_argument("--small", type=int, default=5000, help="small files")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk", type=Path, default=None, help="where the node's disk is tried")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        return _loop(*options.loop)
    size = options.mib * 2**20
    with tempfile.TemporaryDirectory(dir=options.memory) as folder:
        large = _large(Path(folder), size, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.memory) as folder:
        small = _small(Path(folder), options.small, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.disk) as folder:
        _disk(Path(folder), size, options.rounds)
    return 0 if large and small else 1


def _large(base: Path, size: int, rounds: int) -> bool:
    node = NodeHarness(base, sys.executable)
    node.mirror.add("model.bin", os.urandom(size))
    with served(node.mirror) as port, _scp(base, node.mirror) as copying:
        works = {"ours": _ours(node, port), "loop": _minimal(node, port), **copying}
        node.mirror.files.clear()
        seconds = _medians(works, base, rounds)
    ratio = seconds["loop"] / seconds["ours"]
    print(
        f"one node, {size / 2**20:.0f} MiB in memory: {size / seconds['ours'] / 1e6:.0f} MB/s, ratio to a minimal loop "
        f"({size / seconds['loop'] / 1e6:.0f} MB/s) {ratio:.2f} (limit {SPEED_LIMIT}); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if "scp" not in seconds:
        print(f"    scp: not measured, it needs {SSHD}, scp and ssh-keygen; limit {SCP_LIMIT}")
        return ratio >= SPEED_LIMIT
    faster = seconds["scp"] / seconds["ours"]
    print(f"    {faster:.1f} times scp ({size / seconds['scp'] / 1e6:.0f} MB/s; limit {SCP_LIMIT})")
    return ratio >= SPEED_LIMIT and faster >= SCP_LIMIT


def _ours(node: NodeHarness, port: int) -> Callable[[], float]:
    """A delivery; its own seconds."""
    document = json.loads(node.mirror.listing.to_bytes())
    location = {"urls": [f"http://127.0.0.1:{port}"], "token": TOKEN}
    return lambda: float(node.deliver(listing=document, mirror=location)["seconds"])


def _minimal(node: NodeHarness, port: int) -> Callable[[], float]:
    """The loop, as a program; its own seconds."""
    file = node.mirror.listing.files[0]
    module = [sys.executable, "-m", "tests.benchmarks.loopback"]
    chunks = ",".join(chunk.sha256 for chunk in file.chunk_ranges)
    words = [*module, "--loop", str(port), chunks, file.sha256, str(node.base / "copy")]
    return lambda: float(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


@contextmanager
def _scp(base: Path, mirror: MirrorFixture) -> Iterator[dict[str, Callable[[], float]]]:
    """Copying with scp from this machine's own sshd, if there is one."""
    if any(shutil.which(name) is None for name in (SSHD, "scp", "ssh-keygen")):
        yield {}
        return
    blob = base / "whole"
    blob.write_bytes(mirror.files["model.bin"])
    user = SshUser(base / "user")
    with sshd(base / "sshd", user, "Subsystem sftp internal-sftp", address="127.0.0.1") as host:
        user.known_hosts.write_text(host.known)
        words = ["scp", "-q", "-F", str(user.config), "-P", str(host.port)]

        def copy() -> float:
            began = time.monotonic()
            source = f"{host.address}:{blob}"
            subprocess.run([*words, source, str(base / "copy")], check=True)
            return time.monotonic() - began

        yield {"scp": copy}


def _medians(works: Works, base: Path, rounds: int) -> dict[str, float]:
    """Each side's own seconds, one side after the other in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(work())
            shutil.rmtree(base / "node", ignore_errors=True)
            (base / "copy").unlink(missing_ok=True)
    return {name: statistics.median(item) for name, item in seconds.items()}


def _small(base: Path, count: int, rounds: int) -> bool:
    node = NodeHarness(base, sys.executable)
    for number in range(count):
        node.mirror.add(f"{number % 50}/{number}.bin", os.urandom(_SMALL_BYTES))
    packed = base / "packed"
    source = MemorySource(node.mirror.files, piece=_PIECE)
    ingest(mirror_at(packed), source.resolve("memory://small", None, None), source)
    with served(MirrorFixture(packed)) as port, served(node.mirror) as alone:
        seconds = _medians({"ours": _ours(node, port), "alone": _ours(node, alone)}, base, rounds)
    rate = count / seconds["ours"]
    print(
        f"one node, {count} files of 16 KiB in memory: {rate:.0f} files/s (limit {SMALL_LIMIT}), "
        f"{seconds['alone'] / seconds['ours']:.2f} times what it is without packs; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return rate >= SMALL_LIMIT


def _disk(base: Path, size: int, rounds: int) -> None:
    """What is written to a node's disk; a figure without a limit, as the disk may be any."""
    node = NodeHarness(base, sys.executable)
    node.mirror.add("model.bin", os.urandom(size))
    content = node.mirror.files["model.bin"]
    with served(node.mirror) as port:
        ours = _ours(node, port)
        node.mirror.files.clear()
        works = {"ours": ours, "write": lambda: _write(base / "copy", content)}
        seconds = _medians(works, base, rounds)
    print(
        f"one node, {size / 2**20:.0f} MiB onto {base.parent}: {size / seconds['ours'] / 1e6:.0f} MB/s delivered, of "
        f"{size / seconds['write'] / 1e6:.0f} MB/s that can be written and synced there, ratio {seconds['write'] / seconds['ours']:.2f} "
        f"(no limit; the service publishes 1200 to 1800 MB/s); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _write(target: Path, content: bytes) -> float:
    began = time.monotonic()
    with target.open("wb", buffering=0) as out:
        write_at(out.fileno(), 0, content)
        os.fsync(out.fileno())
    return time.monotonic() - began


@contextmanager
def served(mirror: MirrorFixture) -> Iterator[int]:
    """The mirror's server in a process of its own, as an operator's is; its port."""
    module = [sys.executable, "-m", "tests.benchmarks.serve_mirror"]
    with subprocess.Popen(
        [*module, str(mirror.path), "127.0.0.1", TOKEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def _loop(port: str, chunks: str, sha256: str, target: str) -> int:
    """Be the minimal loop, and print its seconds."""
    began = time.monotonic()
    if receive(int(port), chunks.split(","), target) != sha256:
        sys.exit("the minimal loop received something else")
    print(time.monotonic() - began)
    return 0


def receive(port: int, chunks: list[str], target: str) -> str:
    """The minimal loop: receive and write in one thread, hash in another; the digest of the whole file."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    digest = hashlib.sha256()
    full: queue.Queue[memoryview | None] = queue.Queue()
    free: queue.Queue[bytearray] = queue.Queue()
    for _ in range(8):
        free.put(bytearray(_PIECE))

    def hash_all() -> None:
        while (piece := full.get()) is not None:
            digest.update(piece)
            free.put(piece.obj)  # type: ignore[arg-type]

    hasher = threading.Thread(target=hash_all)
    hasher.start()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for chunk in chunks:
        connection.request(
            "GET", f"/{keys.blob(chunk)}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        response = connection.getresponse()
        buffer = free.get()
        while count := response.readinto(buffer):
            view = memoryview(buffer)[:count]
            os.write(descriptor, view)
            full.put(view)
            buffer = free.get()
        free.put(buffer)
    full.put(None)
    hasher.join()
    os.fsync(descriptor)
    os.close(descriptor)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
