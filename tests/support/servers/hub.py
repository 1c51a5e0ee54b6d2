"""A server that speaks the Hub's HTTP interface, on loopback, with every misbehaviour a mirror must survive."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)/(?P<endpoint>revision|tree|commits)/(?P<rev>[^/]+)/?"
)
_RESOLVE = re.compile(
    r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)"
)
_CDN = re.compile(
    r"/cdn/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)/(?P<rev>[^/]+)/(?P<path>.+)"
)
_BUCKET = re.compile(
    r"/(?:api/)?buckets/(?P<repo>[^/]+/[^/]+)/(?P<endpoint>tree|resolve)(?:/(?P<path>.+))?"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class HubFile:
    """One file of a repository: content in memory or on disk, and the size to announce instead of its own."""

    path: str
    content: bytes | Path
    lfs: bool
    announced: int | None = None

    @property
    def size(self) -> int:
        if self.announced is not None:
            return self.announced
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def bytes(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    @property
    def git_oid(self) -> str:
        data = self.bytes() if not self.lfs else b"pointer " + self.sha256.encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @functools.cached_property
    def sha256(self) -> str:
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def entry(self) -> dict[str, Any]:
        """The file as one row of a tree answer."""
        row = {"type": "file", "path": self.path, "size": self.size, "oid": self.git_oid}
        if self.lfs:
            row["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return row

    def sibling(self) -> dict[str, Any]:
        """The file as one row of a revision with blobs."""
        lfs = {"lfs": {"sha256": self.sha256, "size": self.size}} if self.lfs else {}
        return {"rfilename": self.path, "size": self.size, "blobId": self.git_oid, **lfs}


@dataclass
class HubRepo:
    """A repository: revisions by name, files by commit, and who may read them."""

    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    trees: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    history: list[dict[str, str]] = field(default_factory=list)
    gated: bool = False
    private: bool = False


@dataclass
class HttpFault:
    """What goes wrong with the next ``times`` requests whose path ends with ``path``.

    ``kind``: ``status`` (with ``status`` and ``headers``), ``cut`` and ``silent`` after ``at`` bytes of the body,
    ``flip`` one bit of the byte ``at``, ``longer`` by one byte, ``wait`` ``at`` seconds before answering, ``hold`` back
    what comes after ``at`` bytes of an answer until ``released``.
    """

    kind: str
    path: str
    times: int = 1
    at: int = 0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"no"
    released: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class SeenRequest:
    """One request as it arrived."""

    path: str
    query: str
    headers: Mapping[str, str]
    host: str


class Hub:
    """The server's state; change it from the test at any time."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], HubRepo] = {}
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.links_to: str | None = None
        self.refuses_parameters = 0
        self.faults: list[HttpFault] = []
        self.seen: list[SeenRequest] = []
        self.token = "hf_" + "t" * 30
        self.ranges = True
        self.expands = True
        self.page_size = 1000
        self.cdn: str | None = None
        self.url = ""
        self.connections = 0
        self.sent_bytes = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def add(self, repo: str, files: Mapping[str, bytes | Path], **options: Any) -> str:
        """Commit these files as the branch's newest revision; the commit. Options: see ``publish``."""
        large = (".safetensors", ".bin")
        created = {path: HubFile(path, data, path.endswith(large)) for path, data in files.items()}
        return self.publish(repo, created, **options)

    def publish(
        self,
        repo: str,
        files: Mapping[str, HubFile],
        *,
        dataset: bool = False,
        gated: bool = False,
        private: bool = False,
        branch: str = "main",
        title: str = "",
    ) -> str:
        """Commit files that are made already."""
        rows = [file.entry() for file in files.values()]
        commit = hashlib.sha1(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        kept = self.repos.setdefault(("datasets" if dataset else "models", repo), HubRepo())
        kept.gated, kept.private = gated, private
        kept.refs[branch] = commit
        kept.history.insert(0, {"id": commit, "title": title or f"Commit {len(kept.history) + 1}"})
        kept.commits[commit] = dict(files)
        folders = {path.rpartition("/")[0] for path in files if "/" in path}
        kept.trees[commit] = [
            {"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders
        ] + rows
        return commit

    def asked(self, ending: str) -> list[SeenRequest]:
        """The requests whose path ends like that."""
        return [request for request in self.seen if request.path.endswith(ending)]

    def next_fault(self, path: str) -> HttpFault | None:
        with self.lock:
            return next_fault_for(self.faults, path)


def next_fault_for(faults: list[HttpFault], path: str) -> HttpFault | None:
    """The first fault that is left for a request of this path, counted."""
    for fault in faults:
        if fault.times > 0 and path.endswith(fault.path):
            fault.times -= 1
            return fault
    return None


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers, whole or in part, with what can go wrong on the way. ``closing`` ends what is silent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    closing = threading.Event()

    def log_message(self, *args: object) -> None:
        pass

    def part(
        self,
        content: bytes,
        headers: dict[str, str],
        fault: HttpFault | None,
        *,
        ranges: bool,
        announced: int | None = None,
    ) -> None:
        """The part of the content that the request asks for, of a file that may be announced as larger."""
        body = memoryview(content)
        if fault and fault.kind == "flip":
            body = memoryview(bytearray(content))
            body[fault.at] ^= 1
        if fault and fault.kind == "longer":
            body = memoryview(content + b"!")
        start, end = self.begin(len(body), announced or len(content), headers, ranges=ranges)
        if start > end:
            return
        if fault and fault.kind in ("cut", "silent"):
            self._break(bytes(body[start : max(start, fault.at)]), silent=fault.kind == "silent")
        elif self.command == "GET":
            if fault and fault.kind == "hold":
                held = min(start + fault.at, end)
                self.wfile.write(body[start:held])
                self.wfile.flush()
                fault.released.wait(60)
                start = held
            self.wfile.write(body[start:end])

    def begin(
        self, size: int, announced: int, headers: dict[str, str], *, ranges: bool
    ) -> tuple[int, int]:
        """Send the headers of the requested part of so many bytes; where it begins and ends."""
        start, end, status = 0, size, 200
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked and ranges:
            start, status = int(asked[1]), 206
            end = min(end, int(asked[2]) + 1) if asked[2] else end
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{announced}"
        if start > end:
            self.answer(416, b"", {"Content-Range": f"bytes */{announced}"})
        else:
            self.head(status, end - start, headers)
        return start, end

    def requested_length(self, size: int) -> int:
        """How many bytes of a file of this size the request asks for."""
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        return int(asked[2] or size - 1) + 1 - int(asked[1]) if asked else size

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        """A short answer."""
        self.head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """What comes before a body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _break(self, body: bytes, *, silent: bool) -> None:
        self.wfile.write(body)
        self.wfile.flush()
        if silent:
            self.closing.wait(60)
        self.close_connection = True


class _Handler(FaultyHandler):
    hub: Hub

    def setup(self) -> None:
        super().setup()
        with self.hub.lock:
            self.hub.connections += 1

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        with self.hub.lock:
            self.hub.seen.append(
                SeenRequest(path, parts.query, dict(self.headers), self.headers.get("Host", ""))
            )
        fault = self.hub.next_fault(path)
        if fault and fault.kind == "wait":
            self.hub.closing.wait(fault.at)
            fault = None
        if fault and fault.kind == "status":
            self.answer(fault.status, fault.body, dict(fault.headers))
        elif match := _API.fullmatch(parts.path):
            self._api(match, parse_qs(parts.query))
        elif match := _CDN.fullmatch(parts.path):
            self._file(match, f"{match['kind']}", fault, redirected=True)
        elif match := _RESOLVE.fullmatch(parts.path):
            self._file(match, "datasets" if match["kind"] else "models", fault)
        elif parts.path.startswith("/xet/"):
            self.part(self.hub.blobs[parts.path[5:]], {}, fault, ranges=self.hub.ranges)
        else:
            self._bucket(_BUCKET.fullmatch(parts.path), parse_qs(parts.query))

    do_HEAD = do_GET  # noqa: N815  the name is the library's

    def _repo(self, kind: str, name: str, *, body: bool) -> HubRepo | None:
        repo = self.hub.repos.get((kind, unquote(name)))
        allowed = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if repo is None:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.private and not allowed:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.gated and body and not allowed:
            sent = self.headers.get("Authorization")
            self.answer(403 if sent else 401, b"", {"X-Error-Code": "GatedRepo"})
        else:
            return repo
        return None

    def _api(self, match: re.Match[str], query: dict[str, list[str]]) -> None:
        if self.hub.refuses_parameters and {"expand", "blobs"} & query.keys():
            self.answer(self.hub.refuses_parameters, b"")
            return
        repo = self._repo(match["kind"], match["repo"], body=False)
        if repo is None:
            return
        revision = unquote(match["rev"])
        commit = repo.refs.get(revision, revision)
        if commit not in repo.trees:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif match["endpoint"] == "commits":
            ids = [row["id"] for row in repo.history]
            self._json(repo.history[ids.index(commit) :])
        elif match["endpoint"] == "revision":
            listed = self.hub.expands and "blobs" in query
            info = {
                "sha": commit,
                "gated": "auto" if repo.gated else False,
                "siblings": [
                    file.sibling() if listed else {"rfilename": path}
                    for path, file in repo.commits[commit].items()
                ],
            }
            wanted = query.get("expand", []) if self.hub.expands else []
            self._json(
                {"id": match["repo"]}
                | {name: value for name, value in info.items() if not wanted or name in wanted}
            )
        else:
            self._page(repo.trees[commit], int(query.get("cursor", ["0"])[0]))

    def _page(self, rows: list[dict[str, Any]], start: int) -> None:
        end, host = start + self.hub.page_size, self.hub.links_to or self.hub.url
        link = f"<{host}{urlsplit(self.path).path}?recursive=true&cursor={end}>"
        self._json(rows[start:end], {"Link": f'{link}; rel="next"'} if end < len(rows) else {})

    def _bucket(self, match: re.Match[str] | None, query: dict[str, list[str]]) -> None:
        """A bucket's list, whose prefix is text, and its files, which redirect to blobs that stay."""
        files = self.hub.buckets.get(match["repo"], {}) if match else {}
        path = unquote(match["path"] or "") if match else ""
        hashes = {key: hashlib.sha256(b"xet" + data).hexdigest() for key, data in files.items()}
        self.hub.blobs |= {hashes[key]: data for key, data in files.items()}
        allowed = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if match is None or not files or (match["repo"].endswith("closed") and not allowed):
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"} if match else {})
        elif match["endpoint"] == "tree":
            rows = [
                {"type": "file", "path": key, "size": len(files[key]), "xetHash": hashes[key]}
                for key in sorted(files)
                if key.startswith(path)
            ]
            self._page(rows, int(query.get("cursor", ["0"])[0]))
        else:
            where = f"{self.hub.cdn or self.hub.url}/xet/{hashes[path]}"
            self.answer(302, b"", {"Location": where, "X-Xet-Hash": hashes[path]})

    def _file(
        self, match: re.Match[str], kind: str, fault: HttpFault | None, redirected: bool = False
    ) -> None:
        repo = (
            self.hub.repos.get((kind, match["repo"]))
            if redirected
            else self._repo(kind, match["repo"], body=True)
        )
        if repo is None:
            return
        commit = repo.refs.get(match["rev"], match["rev"])
        file = repo.commits.get(commit, {}).get(unquote(match["path"]))
        if file is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.hub.cdn and file.lfs and not redirected:
            where = f"{self.hub.cdn}/cdn/{kind}/{match['repo']}/{commit}/{quote(file.path)}"
            self.answer(302, b"", {"Location": where, "X-Repo-Commit": commit})
            return
        etag = file.sha256 if isinstance(file.content, bytes) else "on-disk"
        self._body(file, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}, fault)

    def _body(self, file: HubFile, headers: dict[str, str], fault: HttpFault | None) -> None:
        if not isinstance(file.content, Path):
            with self.hub.lock:
                self.hub.sent_bytes += self.requested_length(file.size)
            self.part(file.content, headers, fault, ranges=self.hub.ranges, announced=file.size)
            return
        start, end = self.begin(file.size, file.size, headers, ranges=self.hub.ranges)
        with file.content.open("rb") as stream:
            self.wfile.flush()
            self.connection.sendfile(stream, start, end - start)

    def _json(self, value: object, headers: Mapping[str, str] = {}) -> None:
        self.answer(
            200, json.dumps(value).encode(), {"Content-Type": "application/json", **headers}
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serve(hub: Hub | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """A running hub; with ``hub`` given, a second door to the same one, where its LFS files are."""
    served = hub or Hub()
    handler = type("Handler", (_Handler,), {"hub": served, "closing": served.closing})
    with listen(handler, tls) as url:
        if hub is None:
            served.url = url
        else:
            served.cdn = url
        yield served


@contextmanager
def listen(
    handler: type[FaultyHandler],
    tls: ssl.SSLContext | None = None,
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[str]:
    """A server of such requests on loopback; its URL."""
    server = _Server(address, handler)
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{address[0]}:{server.server_port}"
    finally:
        handler.closing.set()
        server.shutdown()
        server.server_close()


def http_date(seconds_from_now: float) -> str:
    """A time as HTTP headers write it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + seconds_from_now))
