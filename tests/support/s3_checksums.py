"""S3's list of versions with the algorithms of their checksums, in front of moto, which keeps checksums and leaves that out.

The form is that of ObjectVersion: ``ChecksumAlgorithm`` for each algorithm, ``ChecksumType``
(https://docs.aws.amazon.com/AmazonS3/latest/API/API_ObjectVersion.html).
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from tests.support.buckets import Bucket

_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})
"""Headers that are this connection's own, or are written anew."""


@contextmanager
def with_checksums(behind: Bucket) -> Iterator[str]:
    """The endpoint, for as long as the block lasts."""
    server = _Server(urlsplit(behind.endpoint).netloc)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status, headers, body = self._ask("GET", self.path)
        if re.search(r"(^|&)versions(=|&|$)", query) and status == 200:
            body = self._completed(path, body)
        self._answer(status, headers, body)

    def do_HEAD(self) -> None:
        self._answer(*self._ask("HEAD", self.path))

    def _completed(self, bucket: str, body: bytes) -> bytes:
        """The list, with what a HEAD of each version tells."""
        ElementTree.register_namespace("", _SPACE)
        page = ElementTree.fromstring(body)
        for one in page.iterfind("{*}Version"):
            key, version = (one.findtext(f"{{*}}{name}") or "" for name in ("Key", "VersionId"))
            target = f"{bucket}/{quote(key)}?versionId={quote(version)}"
            _, told, _ = self._ask("HEAD", target, {"x-amz-checksum-mode": "ENABLED"})
            if "x-amz-checksum-sha256" in {name.lower() for name in told}:
                # One object may have several: the first is not the one that is looked for.
                for algorithm in ("CRC64NVME", "SHA256"):
                    ElementTree.SubElement(one, f"{{{_SPACE}}}ChecksumAlgorithm").text = algorithm
                ElementTree.SubElement(one, f"{{{_SPACE}}}ChecksumType").text = "FULL_OBJECT"
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
