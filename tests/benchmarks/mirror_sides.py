"""The sides that ``mirror`` compares, each run as a program of its own so that its peak memory and CPU time are its own.

    python -m tests.benchmarks.mirror_sides SIDE URL DIRECTORY

``minimal`` receives, hashes, writes and syncs with plain sockets and threads: the least that a verifying mirror can do. ``product``
is trainctl. ``hub`` is ``huggingface_hub.snapshot_download``, which verifies nothing and syncs nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from tests.benchmarks.quick_hub import COMMIT, REPO

CHUNK = 16 * 2**20
PIECE = 2**20
WRITE = 2**18
_AT_ONCE = 4


def minimal(url: str, target: Path) -> None:
    """A listing, then every file by a few threads."""
    target.mkdir()
    files: SimpleQueue[tuple[str, int]] = SimpleQueue()
    following: str | None = f"{url}/api/models/{REPO}/tree/{COMMIT}?recursive=true"
    number = 0
    while following:
        with urlopen(following) as answer:
            for row in json.load(answer):
                files.put((row["path"], number := number + 1))
            link = re.search(r"<([^>]*)>", answer.headers.get("Link") or "")
        following = link[1] if link else None
    threads = [threading.Thread(target=_fetch, args=(url, target, files)) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fetch(url: str, target: Path, files: SimpleQueue[tuple[str, int]]) -> None:
    where = urlsplit(url)
    connection = socket.create_connection((where.hostname, where.port))
    stream = connection.makefile("rb")
    while True:
        try:
            path, number = files.get_nowait()
        except Empty:
            return
        name = quote(f"/{REPO}/resolve/{COMMIT}/{path}")
        connection.sendall(f"GET {name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        length = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        temporary = target / f"tmp.{number}"
        with temporary.open("wb", buffering=0) as out:
            digest = (_large if length >= 4 * PIECE else _small)(stream, length, out)
            os.fsync(out.fileno())
        temporary.rename(target / digest)


def _small(stream: io.BufferedReader, left: int, out: io.FileIO) -> str:
    content = stream.read(left)
    out.write(content)
    hashlib.sha1(b"blob %d\0" % left + content).hexdigest()
    return hashlib.sha256(content).hexdigest()


def _large(stream: io.BufferedReader, left: int, out: io.FileIO) -> str:
    """Whole and by chunk, each in a thread."""
    queues: list[Queue[bytes | None]] = [Queue(8), Queue(8)]
    lines: list[str] = []
    threads = [
        threading.Thread(target=work, args=(queue, lines))
        for work, queue in zip((_whole, _by_chunk), queues, strict=True)
    ]
    for thread in threads:
        thread.start()
    while left:
        piece = stream.read(min(PIECE, left))
        for start in range(0, len(piece), WRITE):
            out.write(memoryview(piece)[start : start + WRITE])
        left -= len(piece)
        for queue in queues:
            queue.put(piece)
    for queue in queues:
        queue.put(None)
    for thread in threads:
        thread.join()
    return lines[0]


def _whole(queue: Queue[bytes | None], lines: list[str]) -> None:
    digest = hashlib.sha256()
    while (piece := queue.get()) is not None:
        digest.update(piece)
    lines.append(digest.hexdigest())


def _by_chunk(queue: Queue[bytes | None], lines: list[str]) -> None:
    digest, room = hashlib.sha256(), CHUNK
    while (piece := queue.get()) is not None:
        digest.update(piece)
        room -= len(piece)
        if room <= 0:
            digest.hexdigest()
            digest, room = hashlib.sha256(), CHUNK


def product(url: str, target: Path) -> None:
    """What trainctl does."""
    from trainctl.base.retry import RetryPolicy
    from trainctl.sources.hf import HubSource
    from trainctl.store.objects import DirectoryObjects
    from trainctl.store.references import Reference
    from trainctl.store.store import MirrorStore
    from trainctl.weights.mirrors import SourceUpstream

    source = HubSource(url)
    resolved = source.resolve(f"hf://{REPO}", None, None)
    upstream = SourceUpstream(source, resolved, None)
    store = MirrorStore(DirectoryObjects(target), RetryPolicy())
    store.ingest(resolved, upstream, Reference("l", "weights.x", "me", "bench"))


def hub(url: str, target: Path) -> None:
    """What the Hub's own library does, with its defaults; hf_xet is of no use to it unless the server speaks Xet."""
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, endpoint=url, cache_dir=target)


SIDES: dict[str, Callable[[str, Path], None]] = {
    "minimal": minimal,
    "product": product,
    "hub": hub,
}


_NEEDS = {
    "product": ("trainctl.store.store", "trainctl.sources.hf", "trainctl.weights.mirrors"),
    "hub": ("huggingface_hub._snapshot_download",),
}


def main(name: str, url: str, target: str) -> None:
    """Run one side and print its seconds of wall and CPU time, and its peak memory."""
    os.environ.update(NO_PROXY="127.0.0.1", HF_HOME=target, HF_HUB_DISABLE_PROGRESS_BARS="1")
    for needed in _NEEDS.get(name, ()):
        import_module(needed)  # what a program loads is told by the benchmark of its start
    started = time.perf_counter()
    SIDES[name](url, Path(target))
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * 1024 / 1e6
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
