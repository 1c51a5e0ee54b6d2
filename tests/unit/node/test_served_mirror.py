"""Delivery from a mirror behind HTTP."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from tests.support.servers.blob_server import mirror_location, serve_mirror
from trainctl.base.listing import CHUNK_BYTES

BIG = os.urandom(2 * CHUNK_BYTES + 12345)


@contextmanager
def cutting(port: int, after: int, times: int) -> Iterator[int]:
    """A port that leads to the server, and cuts its first connections after so many bytes of answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = [times]

    def forward(client: socket.socket) -> None:
        budget = after if left[0] > 0 else -1
        left[0] -= 1
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=_pump, args=(client, server, -1), daemon=True).start()
            _pump(server, client, budget)

    def accept() -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=forward, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket, budget: int) -> None:
    try:
        while budget and (data := source.recv(65536 if budget < 0 else min(65536, budget))):
            target.sendall(data)
            budget -= len(data) if budget > 0 else 0
        target.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def test_large_and_small_files_arrive(node: NodeHarness) -> None:
    """By ranges and in packs, verified and sealed like from a directory."""
    node.mirror.add("model.bin", BIG)
    node.mirror.add("medium.bin", BIG[: 2**21])
    node.mirror.add("empty", b"")
    for number in range(60):
        node.mirror.add(f"small/{number}.json", f"{number}".encode())

    with serve_mirror(node.mirror) as server:
        result = node.deliver(mirror=mirror_location(server))

    assert result["bytes_mirror"] == sum(map(len, node.mirror.files.values()))
    assert {
        p.relative_to(node.tree).as_posix(): p.read_bytes()
        for p in node.tree.rglob("*")
        if p.is_file()
    } == node.mirror.files


def test_a_wrong_token_is_said(node: NodeHarness) -> None:
    """A server that refuses the token is an error at once, and not one to be patient with."""
    node.mirror.add("model.bin", BIG)

    with (
        serve_mirror(node.mirror) as server,
        pytest.raises(NodeProgramError, match="access to weights denied") as raised,
    ):
        node.deliver(mirror=mirror_location(server, token="another"))

    assert raised.value.kind == "mirror"


def test_a_blob_that_the_mirror_lost(node: NodeHarness) -> None:
    """The error says what is missing, and no tree appears."""
    node.mirror.add("model.bin", BIG)
    node.mirror.chunk("model.bin", 1).unlink()

    with (
        serve_mirror(node.mirror) as server,
        pytest.raises(NodeProgramError, match=r"blobs/.* not found"),
    ):
        node.deliver(mirror=mirror_location(server))

    assert not node.tree.exists()


@pytest.mark.parametrize("after", [0, 10, 5_000_000, CHUNK_BYTES + 500])
def test_connections_that_break_are_taken_up_where_they_were(node: NodeHarness, after: int) -> None:
    """Before the answer, within its head, within a chunk: the rest is asked for, and the bytes are right."""
    node.mirror.add("model.bin", BIG)
    node.mirror.add("small.json", b"{}")

    with serve_mirror(node.mirror) as server, cutting(server.port, after, 5) as port:
        node.deliver(mirror=mirror_location(server, urls=[f"http://127.0.0.1:{port}"]))

    assert (node.tree / "model.bin").read_bytes() == BIG


def test_a_mirror_that_is_gone(node: NodeHarness) -> None:
    """One that never answered is given up soon, and the error says what to do."""
    node.mirror.add("model.bin", BIG)
    with serve_mirror(node.mirror) as server:
        gone = mirror_location(server)

    with pytest.raises(NodeProgramError, match="no response from the mirror"):
        node.deliver(mirror=gone)


def test_wrong_bytes_over_http_are_refused(node: NodeHarness) -> None:
    """A content of the right length that isn't the listing's is an error, and nothing of it is kept."""
    node.mirror.add("model.bin", BIG)
    node.mirror.corrupt("model.bin", 2)

    with serve_mirror(node.mirror) as server, pytest.raises(NodeProgramError, match=r"model\.bin"):
        node.deliver(mirror=mirror_location(server))

    assert not node.tree.exists()
