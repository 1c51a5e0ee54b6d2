"""The server of objects: what it hands out, and to whom."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import MirrorFixture, wait_for
from tests.support.servers.blob_server import send_request, serve_mirror
from trainctl.base.network.addresses import address_family
from trainctl.base.network.object_server import (
    AHEAD_BYTES,
    EvenStream,
    EvenStreams,
    ObjectServer,
    ObjectSource,
    OpenObject,
    serve_in_thread,
)
from trainctl.errors import TrainctlError
from trainctl.store.mirror_objects import MirrorObjectSource

DATA = random.Random(1).randbytes(300_000)  # ids of cases name its digest
NAME = hashlib.sha256(DATA).hexdigest()
KEY = f"/blobs/sha256/{NAME[:2]}/{NAME}"
ABSENT = f"/blobs/sha256/00/{'0' * 64}"


class Files(ObjectSource):
    """Small blobs in a directory, by their digests."""

    def __init__(self, root: Path, blobs: list[bytes]) -> None:
        self._root = root
        for data in blobs:
            (root / hashlib.sha256(data).hexdigest()).write_bytes(data)

    def open_blob(self, sha256: str) -> OpenObject | None:
        path = self._root / sha256
        return OpenObject.from_file(path.open("rb", buffering=0)) if path.exists() else None


@pytest.fixture
def mirror(tmp_path: Path) -> MirrorFixture:
    """A mirror with one blob, and a file that is none."""
    mirror = MirrorFixture(tmp_path / "mirror")
    mirror.add("model.bin", DATA)
    (mirror.path / "secret").write_text("not served")
    return mirror


@pytest.fixture
def server(mirror: MirrorFixture) -> Iterator[ObjectServer]:
    with serve_mirror(mirror) as running:
        yield running


@pytest.mark.parametrize(
    ("ranges", "status", "body"),
    [
        (None, 200, DATA),
        ("bytes=5-104", 206, DATA[5:105]),
        ("bytes=299990-400000", 206, DATA[299990:]),
        ("bytes=9-5", 416, b""),
        ("bytes=300000-300001", 416, b""),
        ("lines=1-2", 416, b""),
        ("bytes=-5", 416, b""),
    ],
    ids=str,
)
def test_a_blob_is_served_by_ranges(
    server: ObjectServer, ranges: str | None, status: int, body: bytes
) -> None:
    answer = send_request(server, "GET", KEY, headers={"Range": ranges} if ranges else {})
    assert (answer[0], answer[2]) == (status, body)
    if ranges == "bytes=5-104":
        assert answer[1]["Content-Range"] == "bytes 5-104/300000"


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \xe9"])
def test_without_the_token_everything_is_forbidden(server: ObjectServer, token: str) -> None:
    headers = {"Authorization": token}
    for method, path, body in (("GET", KEY, b""), ("GET", ABSENT, b""), ("POST", "/pack", b"[]")):
        answer = send_request(server, method, path, body=body, headers=headers)
        assert (answer[0], answer[2]) == (403, b"")


PATHS = (
    "/", "/secret", "/blobs/sha256/../../secret", "/listings/x.json", f"/blobs/sha256/00/{NAME}", "//etc/passwd",
    f"{KEY}/../../../../secret", KEY[:-1], f"{KEY}?x", f"{KEY}%00", KEY.upper(), "/blobs/sha256/%2e%2e/%2e%2e/secret",
    f"http://elsewhere{KEY}", "/etc/passwd", ABSENT,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_only_blobs_are_served(server: ObjectServer, path: str) -> None:
    status, _, body = send_request(server, "GET", path)
    assert (status, body) == (404, b"")


def test_a_pack_has_each_blob_with_its_length(tmp_path: Path) -> None:
    """The largest length stands for blobs that are absent or too large for packs."""
    blobs = (b"small", b"nowhere", b"", bytes(2**20), b"small")
    digests = [hashlib.sha256(data).hexdigest() for data in blobs]
    source = Files(tmp_path, [b"small", b"", bytes(2**20)])
    with serve_in_thread(ObjectServer(source, "token")) as server:
        status, _, body = send_request(server, "POST", "/pack", body=json.dumps(digests).encode())
        wait_for(lambda: server.sent == 10)  # counted after they were sent

    absent = struct.pack(">Q", 2**64 - 1)
    small = struct.pack(">Q", 5) + b"small"
    assert (status, body) == (200, small + absent + struct.pack(">Q", 0) + absent + small)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'["../../secret"]', b'["x"]', b"[1]", b"\xff", json.dumps([NAME] * 257).encode()],
)
def test_malformed_packs_are_refused(server: ObjectServer, body: bytes) -> None:
    status, headers, _ = send_request(server, "POST", "/pack", body=body)
    assert (status, headers["Connection"]) == (400, "close")


def test_a_silent_client_is_not_waited_for(mirror: MirrorFixture) -> None:
    server = ObjectServer(MirrorObjectSource(mirror.path), "token", read_timeout=0.1)
    with serve_in_thread(server), socket.create_connection(("127.0.0.1", server.port), 20) as peer:
        assert peer.recv(1) == b""


def test_more_connections_than_allowed_are_sent_away(mirror: MirrorFixture) -> None:
    """They are told to come again, and find room once others have gone."""
    server = ObjectServer(MirrorObjectSource(mirror.path), "token", most_connections=1)
    with serve_in_thread(server):
        with socket.create_connection(("127.0.0.1", server.port), 20) as first:
            first.sendall(b"GET /")
            status = 0
            while status != 503:  # until the first connection has been given its thread
                status = send_request(server, "GET", KEY)[0]
        while status == 503:
            status = send_request(server, "GET", KEY)[0]

    assert status == 200


def test_a_server_that_ended_cuts_what_is_under_way(mirror: MirrorFixture) -> None:
    with serve_mirror(mirror) as server:
        peer = socket.create_connection(("127.0.0.1", server.port), 20)
        peer.sendall(b"GET / HTTP/1.1\r\n")

    with peer, contextlib.suppress(ConnectionResetError):
        assert peer.recv(1) == b""


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "localhost", "", 7])
def test_a_server_listens_on_one_address(address: object) -> None:
    """Never on all at once or as one of a group, nor by a name that nobody looked up."""
    with pytest.raises(TrainctlError):
        address_family(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "203.0.113.7", "2001:4860:4860::8888"])
def test_nothing_is_served_to_the_world_without_tls(mirror: MirrorFixture, address: str) -> None:
    """Before anything listens there."""
    with pytest.raises(TrainctlError, match="without TLS"):
        ObjectServer(MirrorObjectSource(mirror.path), "token", [address])


def send(streams: EvenStreams, stream: EvenStream, count: int, done: threading.Event) -> None:
    streams.advance(stream, count)
    done.set()


def test_a_fast_stream_waits_for_the_slowest() -> None:
    streams, fast, slow = EvenStreams(), EvenStream(), EvenStream()
    done = threading.Event()
    with streams.sending(fast), streams.sending(slow):
        streams.advance(fast, AHEAD_BYTES)
        sender = threading.Thread(target=send, args=(streams, fast, 1, done))
        sender.start()
        assert not done.wait(0.1)
        streams.advance(slow, 1)
        assert done.wait(10)
        sender.join()


def test_a_stream_that_ends_or_stalls_delays_no_other() -> None:
    streams, fast, slow = EvenStreams(stalled_seconds=0.05), EvenStream(), EvenStream()
    with streams.sending(fast):
        with streams.sending(slow):
            streams.advance(fast, 2 * AHEAD_BYTES)
        streams.advance(fast, 2 * AHEAD_BYTES)
        with streams.sending(slow):
            assert slow.sent == fast.sent
