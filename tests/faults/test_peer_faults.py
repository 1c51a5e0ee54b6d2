"""Peers that are silent, send wrong bytes, die or are impostors: the mirror provides the bytes, and all are right."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.network.impostor_server import ImpostorServer, impostor
from tests.support.node_program.nodes import NodeProgramError
from tests.support.node_program.peers import (
    TOKEN,
    PeerGroup,
    await_movement,
    kill,
    response_of,
    result_of,
)
from tests.support.servers.blob_server import serve_mirror, server_address
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.network.object_server import (
    ObjectServer,
    ObjectSource,
    OpenObject,
    serve_in_thread,
)
from trainctl.node.system.blob_files import VERIFIED
from trainctl.node.transfer.fetch_pool import to_hex, unit_lengths
from trainctl.resources.mirror_access import new_certificate
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource


def group_of(tmp_path: Path, count: int, chunks: int = 1) -> PeerGroup:
    """Nodes that need a file of several chunks and some small ones."""
    group = PeerGroup(tmp_path, count)
    numbers = random.Random(20261122)
    group.mirror.add("model.bin", numbers.randbytes(chunks * CHUNK_BYTES + 99))
    for number in range(20):
        group.mirror.add(f"small/{number:02}.json", numbers.randbytes(5_000))
    return group


class CompleteSource(MirrorObjectSource):
    """A peer that has everything."""

    def open_blob(self, sha256: str) -> OpenObject | None:
        return self.open(keys.blob(sha256), 0, None)


class CorruptSource(CompleteSource):
    """A peer that has everything, with one bit of each object flipped."""

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        opened = super().open(key, offset, length)
        if opened is None:
            return None
        with opened.stream as stream:
            data = bytearray(stream.read())
        data[offset] ^= 1
        descriptor = os.memfd_create("corrupt")
        os.pwrite(descriptor, data, 0)
        return OpenObject.from_file(os.fdopen(descriptor, "rb", buffering=0))


class IncomingSource(ObjectSource):
    """A peer that announces everything and never has it."""

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        return None

    def is_incoming(self, sha256: str) -> bool:
        return True


@contextmanager
def corrupt(mirror: Path) -> Iterator[int]:
    with serve_in_thread(ObjectServer(CorruptSource(mirror), TOKEN)) as server:
        yield server.port


@contextmanager
def promising(mirror: Path) -> Iterator[int]:
    with serve_in_thread(ObjectServer(IncomingSource(), TOKEN)) as server:
        yield server.port


@contextmanager
def with_another_token(mirror: Path) -> Iterator[int]:
    with serve_in_thread(ObjectServer(CompleteSource(mirror), "another token")) as server:
        yield server.port


@contextmanager
def silent(mirror: Path) -> Iterator[int]:
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for connection in accepted:
        connection.close()


@pytest.mark.parametrize("serve", [corrupt, promising, with_another_token, silent])
def test_the_mirror_replaces_a_peer_that_fails(
    tmp_path: Path, serve: Callable[[Path], AbstractContextManager[int]]
) -> None:
    """A peer that is said to have everything, and of which no byte is of use."""
    group = group_of(tmp_path, 1)
    listing = group.mirror.listing
    holds = {listing.id: to_hex(True for _ in unit_lengths(listing))}
    with serve(group.mirror.path) as port, serve_mirror(group.mirror) as mirror:
        peer = {"node": "peer", "urls": [f"http://127.0.0.1:{port}"], "token": TOKEN}
        peers: list[dict[str, Any]] = [{"node": "lab/lab-0", "holds": {}}, {**peer, "holds": holds}]
        result = result_of(group.begin(0, peers, mirror, patience=0.3))

    group.assert_delivered()
    assert (result["bytes_peers"], result["bytes_mirror"]) == (0, listing.size)
    assert mirror.sent == listing.size


@pytest.fixture
def impostor_at_work(tmp_path: Path) -> Iterator[ImpostorServer]:
    """A server with another certificate than clients expect."""
    certificate = new_certificate()
    path = tmp_path / "impostor.pem"
    path.write_text(certificate.certificate + certificate.key)
    with impostor(str(path)) as server:
        yield server
    assert server.hands > 0
    assert server.received == b""  # neither a token nor a request


def test_an_impostor_of_a_peer_is_skipped(tmp_path: Path, impostor_at_work: ImpostorServer) -> None:
    """The delivery names the peer, and takes its bytes from the mirror."""
    group = group_of(tmp_path, 1)
    peer = {"node": "lab/lab-1", "holds": {}, **server_address(impostor_at_work, new_certificate())}
    with serve_mirror(group.mirror) as mirror:
        process = group.begin(0, [{"node": "lab/lab-0", "holds": {}}, peer], mirror, patience=60)
        output = process.communicate(timeout=120)[0].decode()

    group.assert_delivered()
    assert output.count("skipped lab/lab-1: 127.0.0.1 port ") == 1


def test_an_impostor_of_the_mirror_ends_the_delivery(
    tmp_path: Path, impostor_at_work: ImpostorServer
) -> None:
    group = group_of(tmp_path, 1)
    mirror = server_address(impostor_at_work, new_certificate())

    with pytest.raises(NodeProgramError, match="another certificate") as caught:
        group.nodes[0].deliver(mirror=mirror)

    assert f"127.0.0.1 port {impostor_at_work.port}" in str(caught.value)


def test_the_others_finish_without_a_killed_node(tmp_path: Path) -> None:
    """They fetch its part themselves; when it is back, it resumes with theirs."""
    group = group_of(tmp_path, 3, chunks=3)
    with serve_mirror(group.mirror) as mirror, group.serving() as servers:
        peers = [server.peer for server in servers]
        slow = {"max_rate": 24_000_000, "patience": 0.5}  # at most a chunk before it moves
        victim = group.begin(1, peers, mirror, **slow)
        others = [group.begin(number, peers, mirror, **slow) for number in (0, 2)]
        await_movement(victim)
        kill(victim)
        kill(servers[1].process)
        for other in others:
            result_of(other)
        group.assert_delivered(0, 2)

    again, _ = group.deliver()

    group.assert_delivered(1)
    assert again[1]["bytes_peers"] > 0
    assert (again[0]["bytes_mirror"], again[1]["bytes_mirror"]) == (0, 0)


def test_no_node_keeps_wrong_bytes_that_a_peer_passed_on(tmp_path: Path) -> None:
    """A corrupt chunk of the mirror fails every node: they pass on its bytes before they can verify them."""
    group = group_of(tmp_path, 2)
    digest = hashlib.sha256(group.mirror.files["model.bin"]).hexdigest()
    group.mirror.corrupt("model.bin", 0)

    with serve_mirror(group.mirror) as mirror, group.serving() as servers:
        peers = [server.peer for server in servers]
        processes = [group.begin(number, peers, mirror, patience=0.5) for number in range(2)]
        responses = [response_of(process) for process in processes]

    assert [response["error"]["kind"] for response in responses] == ["SourceMismatch"] * 2
    for node in group.nodes:
        marks = (node.root / "cache" / "partial" / f"{digest}.map").read_bytes()
        assert marks[0] != VERIFIED


def test_a_server_needs_a_token(tmp_path: Path) -> None:
    group = group_of(tmp_path, 1)
    with pytest.raises(NodeProgramError, match="token"):
        group.nodes[0].call("serve", {"token": "", "listings": []})
