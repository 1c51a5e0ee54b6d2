"""Mirroring one large file over loopback, against a minimal loop that does the same receiving, hashing and writing.

    python -m tests.benchmarks.mirror [--gib 1] [--rounds 3] [--directory DIR]

A server process answers with sendfile. Both sides hash the whole file and each 16 MiB chunk (which the listing needs) in
threads of their own, write to the same disk and sync. Rounds alternate; medians are compared. Each side runs in a process of its own,
so that its peak memory is its own. Prints both rates, the ratio with its limit, and both peaks; exits 1 below the limit.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Queue
from urllib.parse import urlsplit

LIMIT = 0.85
MEMORY_LIMIT_MB = 200
CHUNK = 16 * 2**20
PIECE = 2**20


def serve(path: str) -> None:
    """Be a hub with one repository of one file."""
    from tests.support.hub import serve as serving

    with serving() as hub:
        hub.add("bench/model", {"model.safetensors": Path(path)})
        print(hub.url, flush=True)
        sys.stdin.read()


def minimal(url: str, target: Path) -> None:
    """Receive, write, hash whole and by chunk in threads, sync: nothing else."""
    stream, left = _ask(url)
    queues: list[Queue[bytes | None]] = [Queue(8), Queue(8)]
    threads = [
        threading.Thread(target=work, args=(queue,))
        for work, queue in zip((_whole, _by_chunk), queues, strict=True)
    ]
    for thread in threads:
        thread.start()
    with target.open("wb", buffering=0) as out:
        while left:
            piece = stream.read(min(PIECE, left))
            out.write(piece)
            left -= len(piece)
            for queue in queues:
                queue.put(piece)
        for queue in queues:
            queue.put(None)
        for thread in threads:
            thread.join()
        os.fsync(out.fileno())


def _ask(url: str) -> tuple[io.BufferedReader, int]:
    where = urlsplit(url)
    connection = socket.create_connection((where.hostname, where.port))
    path = "/bench/model/resolve/main/model.safetensors"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    stream = connection.makefile("rb")
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return stream, length


def _whole(queue: Queue[bytes | None]) -> None:
    digest = hashlib.sha256()
    while (piece := queue.get()) is not None:
        digest.update(piece)
    digest.hexdigest()


def _by_chunk(queue: Queue[bytes | None]) -> None:
    digest, room = hashlib.sha256(), CHUNK
    while (piece := queue.get()) is not None:
        digest.update(piece)
        room -= len(piece)
        if room <= 0:
            digest.hexdigest()
            digest, room = hashlib.sha256(), CHUNK


def product(url: str, target: Path) -> None:
    """What trainctl does."""
    from trainctl.weights.mirror import DirectoryMirror, Reference
    from trainctl.weights.sources.hf import HubSource

    source = HubSource(url)
    resolved = source.resolve("hf://bench/model", None, None)
    DirectoryMirror(target).mirror(resolved, source, Reference("l", "weights.x", "me", "bench"))


def side(name: str, url: str, target: str) -> None:
    """Run one side and print its seconds and peak memory."""
    act = {"minimal": minimal, "product": product}[name]
    started = time.perf_counter()
    act(url, Path(target))
    seconds = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def _child(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.mirror", *arguments]


def _run(name: str, url: str, directory: Path) -> dict[str, float]:
    target = directory / name
    os.sync()
    done = subprocess.run(
        _child("--side", name, url, str(target)), stdout=subprocess.PIPE, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return result


def compare(gib: float, rounds: int, directory: Path) -> bool:
    """Alternate both sides and print medians; whether the limits are kept."""
    size = int(gib * 2**30)
    upstream = directory / "upstream"
    block = os.urandom(PIECE)
    with upstream.open("wb") as out:
        for number in range(size // PIECE):
            out.write(number.to_bytes(8, "big") + block[8:])
    server = subprocess.Popen(
        _child("--serve", str(upstream)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    results: dict[str, list[dict[str, float]]] = {"minimal": [], "product": []}
    try:
        for _ in range(rounds):
            for name, found in results.items():
                found.append(_run(name, url, directory))
    finally:
        server.kill()
        server.wait()
    rates, peaks = {}, {}
    for name, found in results.items():
        rates[name] = size / 1e6 / statistics.median(one["seconds"] for one in found)
        peaks[name] = max(one["peak_mb"] for one in found)
        print(f"{name}: {rates[name]:.0f} MB/s, peak memory {peaks[name]:.0f} MB")
    ratio = rates["product"] / rates["minimal"]
    print(f"{gib:g} GiB, {rounds} rounds, medians: ratio {ratio:.2f} (limit {LIMIT})")
    print(f"peak memory {peaks['product']:.0f} MB (limit {MEMORY_LIMIT_MB} MB)")
    return ratio >= LIMIT and peaks["product"] < MEMORY_LIMIT_MB


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    if options.side:
        side(*options.side)
        return 0
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        return 0 if compare(options.gib, options.rounds, Path(scratch)) else 1


if __name__ == "__main__":
    sys.exit(main())
