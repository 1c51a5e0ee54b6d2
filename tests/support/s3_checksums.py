"""S3's lists with the algorithms and types of checksums, and HEADs with these types, in front of moto, which keeps them and leaves that out.

The form is that of ObjectVersion and Object: ``ChecksumAlgorithm`` for each algorithm, ``ChecksumType``
(https://docs.aws.amazon.com/AmazonS3/latest/API/API_ObjectVersion.html).
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from tests.support.buckets import Bucket

_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_CHECKSUM = "x-amz-checksum-"
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})
"""Headers that are this connection's own, or are written anew."""


@contextmanager
def with_checksums(
    behind: Bucket, told: Mapping[str, str] | None = None, listed: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The endpoint, for as long as the block lasts, and the objects that HEADs asked for.

    ``told``: what HEADs tell of checksums in place of what there is. ``listed``: in place of the list's ``ChecksumType``; empty, and it tells nothing of checksums.
    """
    server = _Server(urlsplit(behind.endpoint).netloc, told, listed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: str, told: Mapping[str, str] | None, listed: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.told = told
        self.listed = listed
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status, headers, body = self._ask("GET", self.path)
        if re.search(r"(^|&)(versions|list-type)(=|&|$)", query) and status == 200:
            body = self._completed(path, body)
        self._answer(status, headers, body)

    def do_HEAD(self) -> None:
        self.server.asked.append(self.path)
        status, headers, _ = self._ask("HEAD", self.path)
        if status == 200 and self.headers.get("x-amz-checksum-mode") == "ENABLED":
            rest = {name: headers[name] for name in headers if not _is_checksum(name)}
            headers = {**rest, **self._checksums(self.path)}
        self._answer(status, headers, b"")

    def _checksums(self, target: str) -> Mapping[str, str]:
        """What a HEAD of S3 tells; moto's GET knows the most of it."""
        if self.server.told is not None:
            return self.server.told
        _, found, _ = self._ask("GET", target, {"x-amz-checksum-mode": "ENABLED"})
        return {name.lower(): found[name] for name in found if _is_checksum(name)}

    def _completed(self, bucket: str, body: bytes) -> bytes:
        """The list, with what a HEAD of each object or version tells."""
        ElementTree.register_namespace("", _SPACE)
        page = ElementTree.fromstring(body)
        for one in (*page.iterfind("{*}Version"), *page.iterfind("{*}Contents")):
            for known in one.findall("{*}ChecksumAlgorithm"):
                one.remove(known)
            key, version = (one.findtext(f"{{*}}{name}") or "" for name in ("Key", "VersionId"))
            target = f"{bucket}/{quote(key)}" + (f"?versionId={quote(version)}" if version else "")
            told = self._checksums(target)
            kind = told.get("x-amz-checksum-type") or "FULL_OBJECT"
            kind = kind if self.server.listed is None else self.server.listed
            algorithms = {name[len(_CHECKSUM) :].upper() for name in told} - {"TYPE"}
            if not algorithms or not kind:
                continue
            if "SHA256" in algorithms:
                algorithms.add("CRC64NVME")  # there may be several
            for algorithm in sorted(algorithms):
                ElementTree.SubElement(one, f"{{{_SPACE}}}ChecksumAlgorithm").text = algorithm
            ElementTree.SubElement(one, f"{{{_SPACE}}}ChecksumType").text = kind
        return ElementTree.tostring(page)

    def _ask(
        self, method: str, target: str, more: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(method, target, headers={**headers, **(more or {})})
        answer = connection.getresponse()
        body = answer.read()
        found = dict(answer.headers.items())
        connection.close()
        return answer.status, found, body

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)


def _is_checksum(name: str) -> bool:
    return name.lower().startswith(_CHECKSUM)
