"""Several nodes that need the same weights at once."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from tests.support.node_program.peers import TOKEN, PeerGroup, result_of
from tests.support.servers.blob_server import send_request, serve_mirror
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.network.object_server import ObjectServer, OpenObject, serve_in_thread
from trainctl.node.system.blob_files import VERIFIED
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource

pytestmark = pytest.mark.integration

SEED = 20261122
MakeGang = Callable[[int], PeerGroup]


@pytest.fixture
def gang(tmp_path: Path) -> MakeGang:
    """Makes so many nodes, whose mirror holds a file of several chunks and some small ones."""

    def make(count: int) -> PeerGroup:
        made = PeerGroup(tmp_path, count)
        numbers = random.Random(SEED)
        made.mirror.add("model.bin", numbers.randbytes(4 * CHUNK_BYTES + 99))
        for number in range(40):
            made.mirror.add(f"small/{number:02}.json", numbers.randbytes(20_000))
        return made

    return make


def _check(node: NodeHarness) -> None:
    """The node has every byte, and nothing is left of the fetching."""
    tree = node.tree
    for path, data in node.mirror.files.items():
        assert (tree / path).read_bytes() == data, path
    assert list((node.root / "cache" / "partial").iterdir()) == []


def test_the_mirror_sends_one_copy(gang: MakeGang) -> None:
    """Three nodes that have nothing get everything, and the mirror sends it once."""
    nodes = gang(3)

    results, sent = nodes.deliver()

    size = nodes.mirror.listing.size
    for node in nodes.nodes:
        _check(node)
    assert sent <= 1.05 * size
    assert sum(one["bytes_mirror"] for one in results) == sent
    assert [one["bytes_mirror"] + one["bytes_peers"] for one in results] == [size] * 3


def test_what_half_of_the_nodes_have_is_not_fetched_again(gang: MakeGang) -> None:
    """Two of four nodes hold some chunks of the large file: with those, the mirror sends one copy at most."""
    nodes = gang(4)
    content = nodes.mirror.files["model.bin"]
    digest = hashlib.sha256(content).hexdigest()
    for number, first in ((0, 0), (1, 2)):
        partial = nodes.nodes[number].root / "cache" / "partial"
        partial.mkdir(parents=True)
        with (partial / f"{digest}.part").open("wb") as part:
            part.seek(first * CHUNK_BYTES)
            part.write(content[first * CHUNK_BYTES : (first + 2) * CHUNK_BYTES])
        chunks = bytearray(5)
        chunks[first : first + 2] = b"\1\1"
        (partial / f"{digest}.map").write_bytes(chunks)

    results, sent = nodes.deliver()

    for node in nodes.nodes:
        _check(node)
    held = 4 * CHUNK_BYTES
    assert sent == nodes.mirror.listing.size - held
    assert [one["bytes_node"] for one in results] == [held // 2, held // 2, 0, 0]


def test_files_of_one_chunk_don_t_wait_for_each_other(tmp_path: Path) -> None:
    """Two nodes that each bring some of them hand them out before all are there: nobody has to ask the mirror for what is a peer's."""
    nodes = PeerGroup(tmp_path, 2)
    numbers = random.Random(SEED)
    for size in (2**20, 2**20 + 1, 3 * 2**20, CHUNK_BYTES):
        nodes.mirror.add(f"{size}.bin", numbers.randbytes(size))

    _, sent = nodes.deliver()

    for node in nodes.nodes:
        _check(node)
    assert sent == nodes.mirror.listing.size


class Halting(MirrorObjectSource):
    """A mirror that sends half a chunk, and the rest of it when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go_on = threading.Event()

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        """See Content."""
        if offset:
            assert self.go_on.wait(60)
        found = super().open(key, offset, length)
        if found is None or offset or found.size < CHUNK_BYTES:
            return found
        cut = os.memfd_create("half")  # shorter than was announced: the connection is cut
        os.pwrite(cut, found.stream.read(CHUNK_BYTES // 2), 0)
        found.stream.close()
        return found._replace(stream=os.fdopen(cut, "rb", buffering=0))


def test_a_chunk_is_passed_on_while_it_arrives(tmp_path: Path) -> None:
    """A node whose mirror has sent half a chunk hands out that half, and the rest when it has come."""
    gang = PeerGroup(tmp_path, 1)
    content = random.Random(SEED).randbytes(CHUNK_BYTES + 99)
    gang.mirror.add("model.bin", content)
    halting = Halting(gang.mirror.path)
    path = f"/{keys.blob(gang.mirror.listing.files[0].chunks[0])}"
    wanted = {"Range": f"bytes=0-{CHUNK_BYTES - 1}"}

    with gang.serving() as servings, serve_in_thread(ObjectServer(halting, TOKEN)) as server:
        process = gang.begin(0, [servings[0].peer], server)

        def handed_out(length: int) -> bytes | None:
            status, _, body = send_request(servings[0], "GET", path, headers=wanted)
            return body if status == 206 and len(body) == length else None

        half = wait_for(lambda: handed_out(CHUNK_BYTES // 2), 60)
        assert not handed_out(CHUNK_BYTES)
        halting.go_on.set()
        result_of(process)
        whole = handed_out(CHUNK_BYTES)

    assert half == content[: CHUNK_BYTES // 2]
    assert whole == content[:CHUNK_BYTES]


def test_wrong_bytes_that_were_passed_on_are_kept_by_nobody(gang: MakeGang) -> None:
    """A mirror whose chunk is wrong fails every node, though they handed each other its bytes before they could know."""
    nodes = gang(3)
    digest = hashlib.sha256(nodes.mirror.files["model.bin"]).hexdigest()
    nodes.mirror.corrupt("model.bin", 3)

    with serve_mirror(nodes.mirror) as server, nodes.serving() as servings:
        peers = [one.peer for one in servings]
        processes = [nodes.begin(number, peers, server, patience=2) for number in range(3)]
        answers = [json.loads(one.communicate()[0].splitlines()[-1]) for one in processes]

    assert [one["error"]["kind"] for one in answers] == ["wrong"] * 3
    for node in nodes.nodes:
        marks = (node.root / "cache" / "partial" / f"{digest}.map").read_bytes()
        assert marks[3] != VERIFIED
