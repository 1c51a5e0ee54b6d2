"""A Hub that costs little, so that what is measured against it is the client: one thread a connection, answers made beforehand.

It keeps one model repository, under its name and as many numbered ones as are asked for (``bench/model-7``), either real files or as many made-up ones as are asked for, and counts what it is asked.
As a program: ``python -m tests.benchmarks.quick_hub DIRECTORY`` or ``… FILES [MOST_BYTES]``; prints its URL, ends with its input.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

REPO = "bench/model"
COMMIT = "c" * 40
_LFS_FROM_BYTES = 10 * 2**20
_PAGE = 1000
_MADE_UP = re.compile(r"data/\d{4}/(\d{8})\.txt")


class Shelf(Protocol):
    """The files of the repository."""

    def rows(self, start: int, end: int) -> list[dict[str, object]]:
        """That part of the tree, in the order of paths."""
        ...

    def find(self, path: str) -> tuple[str, bytes | Path] | None:
        """A file's ETag and content."""
        ...


class Files:
    """The files below a directory; those of 10 MiB and more lie in large-file storage, as on the Hub."""

    def __init__(self, root: Path) -> None:
        self._rows: list[dict[str, object]] = []
        self._found: dict[str, tuple[str, bytes | Path]] = {}
        for path in sorted(item for item in root.rglob("*") if item.is_file()):
            self._add(path.relative_to(root).as_posix(), path)

    def _add(self, name: str, path: Path) -> None:
        size = path.stat().st_size
        if size >= _LFS_FROM_BYTES:
            with path.open("rb") as stream:
                tag = hashlib.file_digest(stream, "sha256").hexdigest()
            lfs = {"oid": tag, "size": size, "pointerSize": 134}
            row = {"type": "file", "path": name, "size": size, "oid": "0" * 40, "lfs": lfs}
            self._found[name] = (tag, path)
        else:
            row = _git_row(name, path.read_bytes())
            self._found[name] = (str(row["oid"]), path.read_bytes())
        self._rows.append(row)

    def rows(self, start: int, end: int) -> list[dict[str, object]]:
        """See Shelf."""
        return self._rows[start:end]

    def find(self, path: str) -> tuple[str, bytes | Path] | None:
        """See Shelf."""
        return self._found.get(path)


class MadeUp:
    """So many small files that nobody has to keep: each holds its own number, and less than so many bytes more."""

    def __init__(self, count: int, most_bytes: int = 1) -> None:
        self._count = count
        self._noise = random.Random(0).randbytes(most_bytes)

    def rows(self, start: int, end: int) -> list[dict[str, object]]:
        """See Shelf."""
        numbers = range(start, min(end, self._count))
        names = {number: f"data/{number // 1000:04}/{number:08}.txt" for number in numbers}
        return [_git_row(name, self._content(item)) for item, name in names.items()]

    def find(self, path: str) -> tuple[str, bytes | Path] | None:
        """See Shelf."""
        number = _MADE_UP.fullmatch(path)
        if number is None:
            return None
        content = self._content(int(number[1]))
        return str(_git_row(path, content)["oid"]), content

    def _content(self, number: int) -> bytes:
        return b"%d\n" % number + self._noise[: number * 2_654_435_761 % len(self._noise)]


def _git_row(path: str, content: bytes) -> dict[str, object]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": oid}


def _sibling(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the tree as ``?blobs=true`` has it."""
    lfs = {"lfs": {**row["lfs"], "sha256": row["lfs"]["oid"]}} if "lfs" in row else {}
    return {"rfilename": row["path"], "size": row["size"], "blobId": row["oid"], **lfs}


class QuickHub:
    """Answers on one connection after another's bytes; ``asked`` counts requests by what they are for."""

    def __init__(self, shelf: Shelf, seconds: float = 0.0) -> None:
        self._shelf = shelf
        self._seconds = seconds
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.asked: Counter[str] = Counter()

    def run(self) -> None:
        """Take connections until ``close``."""
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _talk(self, connection: socket.socket) -> None:
        received = b""
        with connection:
            while True:
                while b"\r\n\r\n" not in received:
                    try:
                        more = connection.recv(2**16)
                    except OSError:
                        return
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                try:
                    self._answer(connection, head.decode())
                except OSError:
                    return

    def _answer(self, connection: socket.socket, head: str) -> None:
        time.sleep(self._seconds)
        method, target, _ = head.split(" ", 2)
        path, _, query = re.sub(rf"{REPO}-\d+/", f"{REPO}/", target).partition("?")
        if path == "/asked":
            self._send(connection, method, json.dumps(self.asked).encode())
        elif path == f"/api/models/{REPO}/revision/main":
            self.asked["revision"] += 1
            info: dict[str, object] = {"id": REPO, "sha": COMMIT}
            if "expand=" not in query:
                rows = self._shelf.rows(0, sys.maxsize)
                info["siblings"] = [_sibling(row) for row in rows]
            self._send(connection, method, json.dumps(info).encode())
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self.asked["tree"] += 1
            self._tree(connection, method, query)
        else:
            self.asked[f"{method} file"] += 1
            result = self._shelf.find(unquote(path.partition(f"/{REPO}/resolve/{COMMIT}/")[2]))
            if result is None:
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            else:
                self._file(connection, method, head, *result)

    def _tree(self, connection: socket.socket, method: str, query: str) -> None:
        cursor = re.search(r"cursor=(\d+)", query)
        start = int(cursor[1]) if cursor else 0
        rows = self._shelf.rows(start, start + _PAGE)
        more = ""
        if len(rows) == _PAGE and self._shelf.rows(start + _PAGE, start + _PAGE + 1):
            url = f"{self.url}/api/models/{REPO}/tree/{COMMIT}?recursive=true&expand=false"
            more = f'Link: <{url}&cursor={start + _PAGE}>; rel="next"\r\n'
        self._send(connection, method, json.dumps(rows).encode(), more)

    def _file(
        self, connection: socket.socket, method: str, head: str, tag: str, content: bytes | Path
    ) -> None:
        more = f'ETag: "{tag}"\r\nX-Repo-Commit: {COMMIT}\r\nAccept-Ranges: bytes\r\n'
        if isinstance(content, bytes):
            self._send(connection, method, content, more, "application/octet-stream")
            return
        size = content.stat().st_size
        ranged = re.search(r"\r\nrange: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
        start = int(ranged[1]) if ranged else 0
        end = min(size, int(ranged[2]) + 1) if ranged and ranged[2] else size
        status = "206 Partial Content" if ranged else "200 OK"
        more += f"Content-Range: bytes {start}-{end - 1}/{size}\r\n" if ranged else ""
        connection.sendall(
            f"HTTP/1.1 {status}\r\n{more}Content-Length: {end - start}\r\n\r\n".encode()
        )
        if method == "GET":
            with content.open("rb") as stream:
                while start < end:
                    start += os.sendfile(connection.fileno(), stream.fileno(), start, end - start)

    def _send(
        self,
        connection: socket.socket,
        method: str,
        body: bytes,
        more: str = "",
        kind: str = "application/json",
    ) -> None:
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + (body if method == "GET" else b""))


@contextmanager
def quick_hub(shelf: Shelf, seconds: float = 0.0) -> Iterator[QuickHub]:
    """One that runs in this process, and takes so long for each answer."""
    hub = QuickHub(shelf, seconds)
    thread = threading.Thread(target=hub.run, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.close()
        thread.join()


def main(what: str, most_bytes: str = "1") -> None:
    """Be one until standard input ends."""
    made_up = what.isdecimal()
    shelf: Shelf = MadeUp(int(what), int(most_bytes)) if made_up else Files(Path(what))
    with quick_hub(shelf) as hub:
        print(hub.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
