"""Objects over TLS: to whoever knows the server's fingerprint, and nothing to whoever is in between."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.network.impostor_server import impostor
from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from tests.support.node_program.peers import PeerGroup, result_of
from tests.support.servers.blob_server import mirror_location, serve_mirror, server_address
from trainctl.base.failure import Failure
from trainctl.base.http import HttpError
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.base.network.tls import server_context
from trainctl.node.transfer.http_reader import ServerReader
from trainctl.resources.mirror.node_server import Certificate, new_certificate
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource

ABSENT = keys.blob("0" * 64)
BIG = os.urandom(2 * CHUNK_BYTES + 12345)


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """One that clients are told of."""
    return new_certificate()


@pytest.fixture
def theirs(tmp_path: Path) -> str:
    """A file with the certificate of somebody in between, and its key."""
    made = new_certificate()
    path = tmp_path / "theirs.pem"
    path.write_text(made.certificate + made.key)
    return str(path)


def encrypting(mirror: Path, certificate: Certificate, **limits: Any) -> ObjectServer:
    """A server that speaks TLS, though its address is private."""
    made = {"certificate": certificate.certificate, "key": certificate.key}
    tls = server_context(made)
    return ObjectServer(
        MirrorObjectSource(mirror), "token", tls=tls, private=lambda _: False, **limits
    )


def test_large_and_small_files_arrive(node: NodeHarness, certificate: Certificate) -> None:
    """On the oldest Python that hosts may have."""
    node.mirror.add("model.bin", BIG)
    node.mirror.add("medium.bin", BIG[: 2**21])
    node.mirror.add("config.json", b"{}")

    with serve_mirror(node.mirror, certificate) as server:
        result = node.deliver(mirror=mirror_location(server, certificate))

    assert result["bytes_mirror"] == server.sent == node.mirror.listing.size
    assert {path.name: path.read_bytes() for path in node.tree.iterdir()} == node.mirror.files


def test_peers_pass_on_what_arrives(tmp_path: Path, certificate: Certificate) -> None:
    """One copy leaves a mirror that speaks TLS, and every node has every byte."""
    gang = PeerGroup(tmp_path, 2)
    gang.mirror.add("model.bin", BIG)
    with serve_mirror(gang.mirror, certificate) as server, gang.serving() as servings:
        peers = [one.peer for one in servings]
        where = mirror_location(server, certificate)
        processes = [gang.begin(number, peers, server, mirror=where) for number in range(2)]
        results = [result_of(process) for process in processes]

    assert sum(one["bytes_mirror"] for one in results) == server.sent == len(BIG)
    assert [(node.tree / "model.bin").read_bytes() == BIG for node in gang.nodes] == [True] * 2


def test_a_mirror_that_is_somebody_else_is_told_nothing(
    node: NodeHarness, certificate: Certificate, theirs: str
) -> None:
    """Hands are shaken, no byte follows, and the error says what is wrong at once."""
    node.mirror.add("config.json", b"{}")
    with impostor(theirs) as between:
        where = {"type": "objects", **server_address(between, certificate)}
        with pytest.raises(NodeProgramError, match="another certificate") as caught:
            node.deliver(mirror=where)

    assert between.hands > 0
    assert between.told == b""
    assert f"127.0.0.1 port {between.port}" in str(caught.value)


def test_a_peer_that_is_somebody_else_is_left_out(
    tmp_path: Path, certificate: Certificate, theirs: str
) -> None:
    """It is told nothing, the mirror has the rest, and the delivery says who was left out and why."""
    gang = PeerGroup(tmp_path, 1)
    gang.mirror.add("model.bin", BIG)
    me = {"node": "lab/lab-0", "holds": {}}
    with serve_mirror(gang.mirror) as server, impostor(theirs) as between:
        peer = {"node": "lab/lab-1", "holds": {}, **server_address(between, certificate)}
        process = gang.begin(0, [me, peer], server, patience=60)
        said = process.communicate()[0].decode()

    assert (gang.nodes[0].tree / "model.bin").read_bytes() == BIG
    assert (between.hands, between.told) == (1, b"")
    assert said.count("skipped lab/lab-1: 127.0.0.1 port ") == 1


def test_no_token_goes_where_tls_was_expected_and_is_not(certificate: Certificate) -> None:
    """A server that speaks plain HTTP ends the handshake; https without a fingerprint, and plain HTTP to what isn't private, are refused beforehand."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        where = {"urls": [f"https://127.0.0.1:{port}"], "token": "token"}
        client = ServerReader({**where, "fingerprint": certificate.fingerprint})
        listener.listen()
        heard: list[bytes] = []

        def answer() -> None:
            with listener.accept()[0] as plain:
                heard.append(plain.recv(65536))
                plain.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HttpError):
            client.load(ABSENT)
        thread.join()

    assert b"token" not in heard[0]
    with pytest.raises(Failure):
        ServerReader(where)
    with pytest.raises(Failure):
        ServerReader({"urls": [f"http://203.0.113.7:{port}"], "token": "token"})


def test_who_is_silent_holds_up_nobody(tmp_path: Path, certificate: Certificate) -> None:
    """A client that begins no handshake is cut off in time; another is served meanwhile."""
    server = encrypting(tmp_path, certificate, read_timeout=0.3)
    with (
        serve_in_thread(server),
        socket.create_connection(("127.0.0.1", server.port), 20) as silent,
    ):
        client = ServerReader(server_address(server, certificate))
        with pytest.raises(Failure, match="not found at"):
            client.load(ABSENT)
        client.close()
        assert silent.recv(1) == b""


def test_more_connections_than_allowed_are_closed(tmp_path: Path, certificate: Certificate) -> None:
    """Without a word, as words would take a handshake; there is room again once others have gone."""
    server = encrypting(tmp_path, certificate, most_connections=1)
    client = ServerReader(server_address(server, certificate))
    answers: list[str] = []
    with serve_in_thread(server):
        first = socket.create_connection(("127.0.0.1", server.port), 20)
        while "refused" not in answers:  # until the first connection has its place
            with contextlib.suppress(Failure):
                _try(client, answers)
        first.close()
        while answers[-1] == "refused":
            with contextlib.suppress(Failure):
                _try(client, answers)

    assert answers[-1] == "served"


def _try(client: ServerReader, answers: list[str]) -> None:
    answers.append("served")
    try:
        client.load(ABSENT)
    except HttpError:
        answers[-1] = "refused"
    finally:
        client.close()


def test_a_server_that_ended_cuts_what_is_under_way(
    tmp_path: Path, certificate: Certificate
) -> None:
    """Also where hands were not shaken yet."""
    with serve_in_thread(encrypting(tmp_path, certificate)) as server:
        peer = socket.create_connection(("127.0.0.1", server.port), 20)
        peer.sendall(b"\x16")

    with peer:
        assert _rest(peer) == b""


def _rest(peer: socket.socket) -> bytes:
    """What still comes, to the end."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: peer.recv(4096), b""))
    return b""
