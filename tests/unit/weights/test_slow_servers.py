"""Servers that never fall silent and hardly send anything, on loopback: given up after a while, with an error that says so."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.mirrors import immediate_retry, ingest, mirror_at
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceInterrupted, SourceUnreachable
from trainctl.objects.bucket_client import Bucket
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.sources.client import SourceClient
from trainctl.sources.https import HttpsSource
from trainctl.weights.resolution import SourceRequest, resolve

SILENCE = 0.4
PAUSE = 0.02
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: "1"\r\nLast-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n\r\n'


class Slow(socketserver.ThreadingTCPServer):
    """Sends some bytes at once and then one after another, for half a minute. ``connections`` counts who came."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Drip)
        self.at_once = b""
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Drip(socketserver.StreamRequestHandler):
    server: Slow

    def handle(self) -> None:
        self.server.connections += 1
        self.request.recv(65536)
        with contextlib.suppress(OSError):
            self.request.sendall(self.server.at_once)
            for _ in range(1500):
                self.request.sendall(b"x")
                time.sleep(PAUSE)


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(
    params=[b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX-Header: "], ids=["status", "header"]
)
def endless(slow: Slow, request: pytest.FixtureRequest) -> Slow:
    """One whose headers never end."""
    slow.at_once = request.param
    return slow


def test_headers_that_never_end_are_no_answer(endless: Slow) -> None:
    """They must be complete within the longest silence, whichever engine asks."""
    with pytest.raises(SourceUnreachable, match="did not respond"):
        SourceClient(SILENCE).get(endless.url, "the file", {}).__enter__()
    bucket = Bucket(
        parse_bucket_location("s3://models/a", endless.url, {}), environ={}, read_timeout=SILENCE
    )
    with pytest.raises(SourceUnreachable, match="timed out waiting for"):
        list(bucket.list())


def test_a_body_that_hardly_comes_is_given_up(slow: Slow) -> None:
    """Though each byte comes long before the next is missed; what metadata is told by, and what files are."""
    slow.at_once = HEAD
    with (
        SourceClient(SILENCE).get(slow.url, "the file", {}) as answer,
        pytest.raises(SourceInterrupted, match="body stalled"),
    ):
        answer.read(10**7)
    bucket = Bucket(
        parse_bucket_location("s3://models/a", slow.url, {}), environ={}, read_timeout=SILENCE
    )
    with (
        bucket.open("w", size=10**6) as pieces,
        pytest.raises(SourceInterrupted, match="is too slow"),
    ):
        list(pieces)
    with pytest.raises(SourceInterrupted, match="is too slow"):
        bucket.get("w")
    with pytest.raises(SourceUnreachable, match="timed out waiting for"):
        list(bucket.list())


def test_a_plan_gives_up_early(endless: Slow, tmp_path: Path) -> None:
    """A server that doesn't answer is asked twice, and no more."""
    credential = SourceCredential("", "nobody", endless.url)
    with pytest.raises(SourceUnreachable):
        resolve(
            SourceRequest("s3://models/a", tmp_path),
            credential,
            retry=immediate_retry(),
            open_source=lambda scheme: BucketSource(read_timeout=SILENCE, environ={}),
        )
    assert endless.connections == 2


def test_mirroring_gives_up_what_stalls(slow: Slow, tmp_path: Path) -> None:
    """A transfer that hardly moves is tried as often as any that breaks, and then is an error that says what happened."""
    slow.at_once = HEAD
    file = SourceFile("w", 10**6, 'etag:"1"')
    resolved = ResolvedSource(f"{slow.url}/w", "1", (file,))
    with pytest.raises(SourceInterrupted, match="body stalled"):
        ingest(mirror_at(tmp_path, attempts=2), resolved, HttpsSource(SILENCE))
    assert slow.connections == 2
