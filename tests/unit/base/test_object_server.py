"""The server of objects: what it hands out, and to whom."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import struct
from pathlib import Path

import pytest

from tests.support.node_program.nodes import MirrorFixture
from tests.support.projects.kill_storm import until
from tests.support.servers.blob_server import send_request, serve_mirror
from trainctl.base.failure import Failure
from trainctl.base.network.addresses import address_family
from trainctl.base.network.object_server import (
    ObjectServer,
    ObjectSource,
    OpenObject,
    serve_in_thread,
)
from trainctl.store.mirror_objects import MirrorObjectSource

DATA = random.Random(1).randbytes(300_000)  # ids of cases name its digest
NAME = hashlib.sha256(DATA).hexdigest()
KEY = f"/blobs/sha256/{NAME[:2]}/{NAME}"
ABSENT = f"/blobs/sha256/00/{'0' * 64}"


class Files(ObjectSource):
    """Small contents in a directory, by their digests."""

    def __init__(self, root: Path, contents: list[bytes]) -> None:
        self._root = root
        for data in contents:
            (root / hashlib.sha256(data).hexdigest()).write_bytes(data)

    def open_blob(self, sha256: str) -> OpenObject | None:
        path = self._root / sha256
        return OpenObject.from_file(path.open("rb", buffering=0)) if path.exists() else None


@pytest.fixture
def mirror(tmp_path: Path) -> MirrorFixture:
    """A mirror with one blob, and a secret beside its blobs."""
    mirror = MirrorFixture(tmp_path / "mirror")
    mirror.add("model.bin", DATA)
    (mirror.path / "secret").write_text("nothing of yours")
    return mirror


def test_a_blob_and_its_ranges(mirror: MirrorFixture) -> None:
    """The whole blob and any range of it, byte for byte, with the length announced."""
    with serve_mirror(mirror) as server:
        whole = send_request(server, "GET", KEY)
        part = send_request(server, "GET", KEY, headers={"Range": "bytes=5-104"})
        end = send_request(server, "GET", KEY, headers={"Range": "bytes=299990-400000"})

    assert (whole[0], whole[2]) == (200, DATA)
    assert (part[0], part[2]) == (206, DATA[5:105])
    assert part[1]["Content-Range"] == "bytes 5-104/300000"
    assert (end[0], end[2]) == (206, DATA[299990:])


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \xe9"])
def test_without_the_token_nothing_is_said(mirror: MirrorFixture, token: str) -> None:
    """403 for what is there and for what isn't alike."""
    with serve_mirror(mirror) as server:
        headers = {"Authorization": token}
        answers = [
            send_request(server, "GET", KEY, headers=headers),
            send_request(server, "GET", ABSENT, headers=headers),
            send_request(server, "POST", "/pack", body=b"[]", headers=headers),
        ]

    assert [(status, body) for status, _, body in answers] == [(403, b"")] * 3


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/secret",
        "/blobs/sha256/../../secret",
        "/listings/x.json",
        f"/blobs/sha256/00/{NAME}",
        "//etc/passwd",
        f"{KEY}/../../../../secret",
        KEY[:-1],
        f"{KEY}?x",
        f"{KEY}%00",
        KEY.upper(),
        "/blobs/sha256/%2e%2e/%2e%2e/secret",
        f"http://elsewhere{KEY}",
        "/etc/passwd",
        ABSENT,
    ],
)
def test_nothing_but_what_a_digest_names(mirror: MirrorFixture, path: str) -> None:
    """Whatever else is asked for isn't there."""
    with serve_mirror(mirror) as server:
        status, _, body = send_request(server, "GET", path)

    assert (status, body) == (404, b"")


def test_a_pack(tmp_path: Path) -> None:
    """Small contents come one after another with their lengths; what is absent or too large has the length that says so."""
    content = Files(tmp_path, [b"small", b"", bytes(2**20)])
    digests = [
        hashlib.sha256(data).hexdigest()
        for data in (b"small", b"nowhere", b"", bytes(2**20), b"small")
    ]

    with serve_in_thread(ObjectServer(content, "token")) as server:
        status, _, body = send_request(server, "POST", "/pack", body=json.dumps(digests).encode())
        until(
            lambda: server.sent == 10, "what was sent to be counted, which comes after sending it"
        )

    absent = struct.pack(">Q", 2**64 - 1)
    small = struct.pack(">Q", 5) + b"small"
    assert (status, body) == (200, small + absent + struct.pack(">Q", 0) + absent + small)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'["../../secret"]', b'["x"]', b"[1]", b"\xff", json.dumps([NAME] * 257).encode()],
)
def test_packs_that_are_none(mirror: MirrorFixture, body: bytes) -> None:
    """400, and the connection ends."""
    with serve_mirror(mirror) as server:
        status, headers, _ = send_request(server, "POST", "/pack", body=body)

    assert (status, headers["Connection"]) == (400, "close")


def test_a_silent_client_is_not_waited_for(mirror: MirrorFixture) -> None:
    """Its connection ends after the time that clients are given, though it never asked for anything."""
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
    """Clients that keep their connection get nothing more by it."""
    with serve_mirror(mirror) as server:
        peer = socket.create_connection(("127.0.0.1", server.port), 20)
        peer.sendall(b"GET / HTTP/1.1\r\n")

    with peer, contextlib.suppress(ConnectionResetError):
        assert peer.recv(1) == b""


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "localhost", "", 7])
def test_a_server_listens_on_one_address(address: object) -> None:
    """Never on all at once or as one of a group, nor by a name that nobody looked up."""
    with pytest.raises(Failure):
        address_family(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "203.0.113.7", "2001:4860:4860::8888"])
def test_nothing_is_served_to_the_world_without_tls(mirror: MirrorFixture, address: str) -> None:
    """Before anything listens there."""
    with pytest.raises(Failure, match="without TLS"):
        ObjectServer(MirrorObjectSource(mirror.path), "token", [address])
