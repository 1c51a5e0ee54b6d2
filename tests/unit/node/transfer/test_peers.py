"""Several nodes that need the same weights at once; tests/faults/test_peer_faults.py has their faults."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.node_program.peers import TOKEN, PeerGroup, result_of
from tests.support.servers.blob_server import send_request
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.network.object_server import ObjectServer, OpenObject, serve_in_thread
from trainctl.resources.mirror_access import new_certificate
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource

pytestmark = pytest.mark.integration

NUMBERS = random.Random(20261122)


def group_of(tmp_path: Path, count: int) -> PeerGroup:
    """Nodes whose mirror holds a file of two chunks and a bit, and some small ones."""
    group = PeerGroup(tmp_path, count)
    group.mirror.add("model.bin", NUMBERS.randbytes(2 * CHUNK_BYTES + 99))
    for number in range(40):
        group.mirror.add(f"small/{number:02}.json", NUMBERS.randbytes(20_000))
    return group


@pytest.mark.parametrize("tls", [False, True])
def test_the_mirror_sends_one_copy(tmp_path: Path, tls: bool) -> None:
    group = group_of(tmp_path, 3)

    results, sent = group.deliver(new_certificate() if tls else None)

    group.assert_delivered()
    size = group.mirror.listing.size
    assert sent <= 1.05 * size
    assert sum(result["bytes_mirror"] for result in results) == sent
    assert [result["bytes_mirror"] + result["bytes_peers"] for result in results] == [size] * 3


def test_chunks_that_some_nodes_have_are_not_fetched_again(tmp_path: Path) -> None:
    group = group_of(tmp_path, 3)
    content = group.mirror.files["model.bin"]
    digest = hashlib.sha256(content).hexdigest()
    for number in (0, 1):
        partial = group.nodes[number].root / "cache" / "partial"
        partial.mkdir(parents=True)
        with (partial / f"{digest}.part").open("wb") as part:
            part.seek(number * CHUNK_BYTES)
            part.write(content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
        (partial / f"{digest}.map").write_bytes(bytes(n == number for n in range(3)))

    results, sent = group.deliver()

    group.assert_delivered()
    assert sent == group.mirror.listing.size - 2 * CHUNK_BYTES
    assert [result["bytes_node"] for result in results] == [CHUNK_BYTES, CHUNK_BYTES, 0]


class HaltingSource(MirrorObjectSource):
    """A mirror that sends half a chunk, and the rest once ``go_on`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go_on = threading.Event()

    def open(self, key: str, offset: int, length: int | None) -> OpenObject | None:
        if offset:
            assert self.go_on.wait(60)
        opened = super().open(key, offset, length)
        if opened is None or offset or opened.size < CHUNK_BYTES:
            return opened
        half = os.memfd_create("half")  # shorter than announced: the connection is cut
        os.pwrite(half, opened.stream.read(CHUNK_BYTES // 2), 0)
        opened.stream.close()
        return opened._replace(stream=os.fdopen(half, "rb", buffering=0))


def test_a_chunk_is_passed_on_while_it_arrives(tmp_path: Path) -> None:
    group = PeerGroup(tmp_path, 1)
    content = NUMBERS.randbytes(CHUNK_BYTES + 99)
    group.mirror.add("model.bin", content)
    source = HaltingSource(group.mirror.path)
    path = f"/{keys.blob(group.mirror.listing.files[0].chunks[0])}"
    chunk = {"Range": f"bytes=0-{CHUNK_BYTES - 1}"}

    with group.serving() as servers, serve_in_thread(ObjectServer(source, TOKEN)) as mirror:
        process = group.begin(0, [servers[0].peer], mirror)

        def passed_on(length: int) -> bytes | None:
            status, _, body = send_request(servers[0], "GET", path, headers=chunk)
            return body if status == 206 and len(body) == length else None

        half = wait_for(lambda: passed_on(CHUNK_BYTES // 2))
        assert not passed_on(CHUNK_BYTES)
        source.go_on.set()
        result_of(process)
        complete = passed_on(CHUNK_BYTES)

    assert half == content[: CHUNK_BYTES // 2]
    assert complete == content[:CHUNK_BYTES]
