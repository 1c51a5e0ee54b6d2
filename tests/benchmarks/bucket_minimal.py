"""The least that can bring a bucket's objects into a directory and verify them, as ``buckets`` compares it: plain sockets and threads.

    python -m tests.benchmarks.bucket_minimal BUCKET ENDPOINT DIRECTORY [unverified]

It lists, receives, hashes (whole, by MD5 as the ETag tells it, and large ones by chunk), writes and syncs; no retries, no resuming, no records, no names.
Large objects come by a few connections that each bring a chunk at a time. ``unverified`` hashes nothing: the rest is what verification costs. Prints its
seconds, and those of processors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tests.support.servers.buckets import KEY_ID, SECRET
from trainctl.base import sigv4
from trainctl.base.filesystem.files import write_at

CHUNK = 16 * 2**20
_KEY = sigv4.S3Credential(KEY_ID, SECRET, "")
_EMPTY = hashlib.sha256(b"").hexdigest()
_LARGE_FROM = 64 * 2**20
_AT_ONCE = 4
_AHEAD = 6
_VERIFIES = "unverified" not in sys.argv[4:]


class _NoDigest:
    """Takes the place of a digest."""

    def update(self, data: object) -> None:
        """Hash nothing."""

    def hexdigest(self) -> str:
        return secrets.token_hex(32)


def _digest(name: str, data: bytes | bytearray | memoryview = b"") -> Any:
    return hashlib.new(name, data, usedforsecurity=False) if _VERIFIES else _NoDigest()


def _signed(endpoint: str, path: str, query: sigv4.Query = ()) -> dict[str, str]:
    target = sigv4.RequestTarget("GET", urlsplit(endpoint).netloc, path, query)
    return sigv4.signed_headers(target, _KEY, "us-east-1", _EMPTY, time.time())


def _listed(bucket: str, endpoint: str) -> Iterator[tuple[str, int]]:
    token = ""
    while True:
        query = [("list-type", "2"), ("prefix", "shape/")]
        query += [("continuation-token", token)] if token else []
        url = f"{endpoint}/{bucket}?{sigv4.quote_query(query)}"
        with urlopen(Request(url, headers=_signed(endpoint, f"/{bucket}", query))) as answer:
            page = answer.read().decode()
        for match in re.findall(r"<Contents>(.*?)</Contents>", page, re.DOTALL):
            key, size = (re.search(f"<{name}>(.*?)<", match) for name in ("Key", "Size"))
            assert key is not None
            assert size is not None
            yield key[1], int(size[1])
        more = re.search("<NextContinuationToken>(.*?)<", page)
        if more is None:
            return
        token = more[1]


class _Connection:
    def __init__(self, bucket: str, endpoint: str) -> None:
        where = urlsplit(endpoint)
        self._socket = socket.create_connection((where.hostname, where.port))
        self._bucket, self._endpoint = bucket, endpoint

    def fetch(self, key: str, offset: int, view: memoryview) -> None:
        path = f"/{self._bucket}/{key}"
        headers = _signed(self._endpoint, path)
        headers["range"] = f"bytes={offset}-{offset + len(view) - 1}"
        lines = [f"GET {sigv4.quote_path(path)} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(2**16)
        first = received.partition(b"\r\n\r\n")[2]
        done = len(first)
        view[:done] = first
        while done < len(view):
            done += self._socket.recv_into(view[done:], 0, socket.MSG_WAITALL)


def _small(connection: _Connection, target: Path, key: str, size: int) -> None:
    data = bytearray(size)
    if size:
        connection.fetch(key, 0, memoryview(data))
    _digest("md5", data).hexdigest()
    temporary = target / f"tmp.{key.replace('/', '.')}"
    with temporary.open("wb", buffering=0) as out:
        out.write(data)
        os.fsync(out.fileno())
    temporary.rename(target / _digest("sha256", data).hexdigest())


def _large(connect: Callable[[], _Connection], target: Path, key: str, size: int) -> None:
    free: Queue[bytearray] = Queue()
    for _ in range(_AHEAD):
        free.put(bytearray(CHUNK))
    offsets = iter(range(0, size, CHUNK))
    turn = threading.Lock()
    ready: dict[int, memoryview] = {}
    changed = threading.Condition()
    temporary = target / f"tmp.{key.replace('/', '.')}"

    def bring() -> None:
        connection = connect()
        while True:
            with turn:
                buffer = free.get()
                offset = next(offsets, None)
            if offset is None:
                free.put(buffer)
                return
            view = memoryview(buffer)[: min(CHUNK, size - offset)]
            connection.fetch(key, offset, view)
            _digest("sha256", view).hexdigest()
            write_at(out.fileno(), offset, view)
            with changed:
                ready[offset] = view
                changed.notify()

    whole, tag = _digest("sha256"), _digest("md5")
    with temporary.open("wb", buffering=0) as out:
        for _ in range(_AT_ONCE):
            threading.Thread(target=bring, daemon=True).start()
        for offset in range(0, size, CHUNK):
            with changed:
                changed.wait_for(lambda: offset in ready)  # noqa: B023
                view = ready.pop(offset)
            beside = threading.Thread(target=tag.update, args=(view,))
            beside.start()
            whole.update(view)
            beside.join()
            free.put(view.obj)  # type: ignore[arg-type]
        os.fsync(out.fileno())
    temporary.rename(target / whole.hexdigest())


def main(bucket: str, endpoint: str, target: Path) -> None:
    """Bring everything."""
    began, used = time.perf_counter(), time.process_time()
    target.mkdir()
    todo = sorted(_listed(bucket, endpoint), key=lambda item: -item[1])
    lock = threading.Lock()

    def work() -> None:
        connection = _Connection(bucket, endpoint)
        while True:
            with lock:
                if not todo:
                    return
                key, size = todo.pop(0)
            if size < _LARGE_FROM:
                _small(connection, target, key, size)
            else:
                _large(lambda: _Connection(bucket, endpoint), target, key, size)

    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.perf_counter() - began, time.process_time() - used)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
