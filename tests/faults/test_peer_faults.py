"""Peers that are silent, lie, die or have no space: the mirror is asked instead, and nobody gets a wrong byte."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture, NodeProgramError
from tests.support.node_program.peers import TOKEN, PeerGroup, await_movement, result_of
from tests.support.servers.blob_server import serve_mirror
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.network.object_server import (
    ObjectServer,
    ObjectSource,
    OpenObject,
    serve_in_thread,
)
from trainctl.node.transfer.transfer_units import to_hex, unit_lengths
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource

SEED = 20261122


def _fill(mirror: MirrorFixture) -> None:
    numbers = random.Random(SEED)
    mirror.add("model.bin", numbers.randbytes(2 * CHUNK_BYTES + 99))
    for number in range(20):
        mirror.add(f"small/{number:02}.json", numbers.randbytes(5_000))


@pytest.fixture
def gang(tmp_path: Path) -> PeerGroup:
    """Three nodes."""
    gang = PeerGroup(tmp_path, 3)
    _fill(gang.mirror)
    return gang


class Holding(MirrorObjectSource):
    """A peer that has everything."""

    def open_blob(self, sha256: str) -> OpenObject | None:
        """See Content."""
        return self.open(keys.blob(sha256), 0, None)


class Lying(Holding):
    """Hands out everything, with one bit of each object turned."""

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        """See Content."""
        found = super().open(key, offset, length)
        if found is None:
            return None
        with found.stream as stream:
            data = bytearray(stream.read())
        data[offset] ^= 1
        descriptor = os.memfd_create("lie")
        os.pwrite(descriptor, data, 0)
        return OpenObject.from_file(os.fdopen(descriptor, "rb", buffering=0))


class Promising(ObjectSource):
    """Says of everything that it is coming, for ever."""

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        """See Content."""
        return None

    def is_incoming(self, sha256: str) -> bool:
        """See Content."""
        return True


def _peer(gang: PeerGroup, port: int) -> dict[str, Any]:
    """A peer on that port of which everybody is told that it has everything."""
    listing = Listing.parse(json.loads(gang.mirror.listing.to_bytes()))
    holds = {listing.id: to_hex(True for _ in unit_lengths(listing))}
    urls = [f"http://127.0.0.1:{port}"]
    return {"node": "peer", "urls": urls, "token": TOKEN, "holds": holds}


def _deliver_beside(gang: PeerGroup, port: int) -> tuple[dict[str, Any], int]:
    """Deliver to the first node beside such a peer; its result, and what the mirror sent."""
    me = {"node": "lab/lab-0", "holds": {}}
    with serve_mirror(gang.mirror) as server:
        process = gang.begin(0, [me, _peer(gang, port)], server, patience=0.3)
        return result_of(process), server.sent


def _check(gang: PeerGroup, *numbers: int) -> None:
    for number in numbers:
        tree = gang.nodes[number].tree
        for path, data in gang.mirror.files.items():
            assert (tree / path).read_bytes() == data, (number, path)


def test_a_peer_that_lies(gang: PeerGroup) -> None:
    """Wrong bytes of the right length are noticed, chunk by chunk, and come from the mirror instead."""
    with serve_in_thread(ObjectServer(Lying(gang.mirror.path), TOKEN)) as liar:
        result, sent = _deliver_beside(gang, liar.port)

    _check(gang, 0)
    assert result["bytes_peers"] == 0
    assert sent == gang.mirror.listing.size


def test_a_peer_that_promises_for_ever(gang: PeerGroup) -> None:
    """Patience with one that says it is coming ends."""
    with serve_in_thread(ObjectServer(Promising(), TOKEN)) as server:
        result, _ = _deliver_beside(gang, server.port)

    _check(gang, 0)
    assert result["bytes_mirror"] == gang.mirror.listing.size


@contextmanager
def _silent() -> Iterator[int]:
    """A port where connections are taken, and nothing is ever said."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for one in taken:
        one.close()


def test_a_silent_peer(gang: PeerGroup) -> None:
    """One that takes connections and says nothing is dropped."""
    with _silent() as port:
        result, _ = _deliver_beside(gang, port)

    _check(gang, 0)
    assert result["bytes_mirror"] == gang.mirror.listing.size


def test_a_peer_that_is_gone(gang: PeerGroup) -> None:
    """A port where nobody listens is noticed at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    result, _ = _deliver_beside(gang, port)

    _check(gang, 0)
    assert result["bytes_mirror"] == gang.mirror.listing.size


def test_a_peer_with_another_token(gang: PeerGroup) -> None:
    """A peer that refuses us is as good as none."""
    with serve_in_thread(ObjectServer(Holding(gang.mirror.path), "another token")) as server:
        result, _ = _deliver_beside(gang, server.port)

    _check(gang, 0)
    assert result["bytes_peers"] == 0


def test_a_node_that_is_killed_on_the_way(gang: PeerGroup) -> None:
    """The others bring what it was to bring; when it comes back, it goes on with what it has."""
    with serve_mirror(gang.mirror) as server, gang.serving() as servings:
        peers = [one.peer for one in servings]
        victim = gang.begin(1, peers, server, max_rate=8_000_000, patience=0.5)
        others = [gang.begin(number, peers, server, patience=0.5) for number in (0, 2)]
        await_movement(victim)
        _kill(victim)
        _kill(servings[1].process)
        for other in others:
            result_of(other)
        _check(gang, 0, 2)

    again, _ = gang.deliver()

    _check(gang, 1)
    assert again[1]["bytes_peers"] > 0
    assert (again[0]["bytes_mirror"], again[1]["bytes_mirror"]) == (0, 0)


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_node_without_space(gang: PeerGroup) -> None:
    """It says so; the others have everything."""
    with serve_mirror(gang.mirror) as server, gang.serving() as servings:
        peers = [one.peer for one in servings]
        others = [gang.begin(number, peers, server, patience=0.5) for number in (0, 2)]
        request = gang.begin(1, peers, server, cache={"size": 1000})
        out, _ = request.communicate()
        for other in others:
            result_of(other)

    assert json.loads(out.splitlines()[-1])["error"]["kind"] == "storage"
    _check(gang, 0, 2)


def test_two_deliveries_at_once_to_the_same_nodes(gang: PeerGroup) -> None:
    """Two runs that want the same on all nodes: each byte comes once, whoever brings it."""
    with serve_mirror(gang.mirror) as server, gang.serving() as servings:
        peers = [one.peer for one in servings]
        processes = [
            gang.begin(number, peers, server, lease=f"run-{run}")
            for run in (1, 2)
            for number in range(3)
        ]
        results = [result_of(process) for process in processes]
        sent = server.sent

    _check(gang, 0, 1, 2)
    assert sent == gang.mirror.listing.size
    assert sum(one["bytes_node"] == gang.mirror.listing.size for one in results) == 3


def test_peers_that_are_no_peers(gang: PeerGroup) -> None:
    """A request that doesn't say which of them this node is, or what they hold, is refused."""
    with serve_mirror(gang.mirror) as server:
        for peers in (
            [_peer(gang, 1)],
            [{**_peer(gang, 1), "node": "lab/lab-0", "holds": {gang.mirror.listing.id: "xyz"}}],
        ):
            process = gang.begin(0, peers, server)
            out, _ = process.communicate()
            assert json.loads(out.splitlines()[-1])["error"]["kind"] == "request"


def test_a_server_needs_a_token(gang: PeerGroup) -> None:
    """One that anybody could use is not started."""
    with pytest.raises(NodeProgramError, match="token"):
        gang.nodes[0].call("serve", {"token": "", "listings": []})
