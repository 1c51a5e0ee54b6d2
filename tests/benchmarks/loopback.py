"""One node over loopback, beside a minimal loop that receives, hashes and writes the same, and beside scp."""

from __future__ import annotations

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

from tests.support.nodes import Mirror, TestNode
from tests.support.peers import TOKEN

SPEED_LIMIT, SMALL_LIMIT = 0.85, 5000
_ROUNDS = 3
_PIECE = 2**20
_SMALL_BYTES = 16 * 1024


def measure(memory: Path, size: int, small: int) -> bool:
    """Print large and small files; whether the limits are kept."""
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        large = _large(Path(folder), size)
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        few = _small(Path(folder), small)
    return large and few


def _large(base: Path, size: int) -> bool:
    node = TestNode(base, sys.executable)
    node.mirror.add("model.bin", os.urandom(size))
    listing = node.mirror.listing
    document = json.loads(listing.to_bytes())
    node.mirror.files.clear()
    blob = listing.files[0].sha256
    with _served(node.mirror) as port:

        def ours() -> float:
            origin = {"type": "http", "url": f"http://127.0.0.1:{port}", "token": TOKEN}
            return float(node.deliver(listing=document, origin=origin)["seconds"])

        def loop() -> float:
            module = [sys.executable, "-m", "tests.benchmarks.loopback"]
            words = [*module, str(port), blob, str(base / "copy")]
            return float(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)

        seconds = _medians({"ours": ours, "loop": loop}, base)
    ratio = seconds["loop"] / seconds["ours"]
    print(
        f"one node, {size / 2**20:.0f} MiB over loopback: {size / seconds['ours'] / 1e6:.0f} MB/s, ratio to a minimal loop "
        f"({size / seconds['loop'] / 1e6:.0f} MB/s) {ratio:.2f} (limit {SPEED_LIMIT}); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return ratio >= SPEED_LIMIT


def _medians(works: Mapping[str, Callable[[], float]], base: Path) -> dict[str, float]:
    """Each side's own seconds, one side after the other in every round."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(_ROUNDS):
        for name, work in works.items():
            found[name].append(work())
            shutil.rmtree(base / "node", ignore_errors=True)
            (base / "copy").unlink(missing_ok=True)
    return {name: statistics.median(one) for name, one in found.items()}


def _small(base: Path, count: int) -> bool:
    node = TestNode(base, sys.executable)
    for number in range(count):
        node.mirror.add(f"{number % 50}/{number}.bin", os.urandom(_SMALL_BYTES))
    with _served(node.mirror) as port:
        origin = {"type": "http", "url": f"http://127.0.0.1:{port}", "token": TOKEN}
        result = node.deliver(origin=origin)
    rate = count / float(result["seconds"])
    shutil.rmtree(node.root)
    print(
        f"one node, {count} files of 16 KiB over loopback: {rate:.0f} files/s (limit {SMALL_LIMIT}); "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return rate >= SMALL_LIMIT


@contextmanager
def _served(mirror: Mirror) -> Iterator[int]:
    """The mirror's server in a process of its own, as an operator's is; its port."""
    command = [
        sys.executable,
        "-m",
        "tests.support.serve_mirror",
        str(mirror.path),
        "127.0.0.1",
        TOKEN,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def receive(port: int, blob: str, target: str) -> str:
    """The minimal loop: receive and write in one thread, hash in another; the digest."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/blobs/sha256/{blob}", headers={"Authorization": f"Bearer {TOKEN}"})
    response = connection.getresponse()
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
    buffer = free.get()
    while count := response.readinto(buffer):
        view = memoryview(buffer)[:count]
        os.write(descriptor, view)
        full.put(view)
        buffer = free.get()
    full.put(None)
    hasher.join()
    os.fsync(descriptor)
    os.close(descriptor)
    return digest.hexdigest()


if __name__ == "__main__":
    began = time.monotonic()
    if receive(int(sys.argv[1]), sys.argv[2], sys.argv[3]) != sys.argv[2]:
        sys.exit("the minimal loop received something else")
    print(time.monotonic() - began)
