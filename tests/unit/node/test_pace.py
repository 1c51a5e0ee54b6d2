"""A limit in bytes a second, by a clock that the test owns, and who is held to it."""

from __future__ import annotations

import json

import pytest

from tests.support.blob_server import origin, served
from tests.support.nodes import NodeError, TestNode
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.pace import Pace
from trainctl.node.transfer.origins import open_origin


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def tell(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.now += seconds


@pytest.mark.parametrize("kind", ["http", "directory"])
def test_what_comes_from_the_mirror_keeps_to_the_rate(node: TestNode, kind: str) -> None:
    """Chunks and packs of small files, over HTTP and from a directory: all but the last piece has to be waited for."""
    data = bytes(range(256)) * (CHUNK_BYTES // 256)
    node.mirror.add("model.bin", data)
    small = {f"{number}.json": bytes([number]) * 500_000 for number in range(4)}
    for path, content in small.items():
        node.mirror.add(path, content)
    files = {file.path: file for file in node.mirror.listing.files}
    clock = Clock()
    pace = Pace(1_000_000, clock.tell, clock.sleep)
    with served(node.mirror) as server:
        where = {"type": "directory", "path": str(node.mirror.path)}
        opened = open_origin(where if kind == "directory" else origin(server), pace)
        buffer = bytearray(CHUNK_BYTES)
        opened.read(files["model.bin"].sha256, 0, memoryview(buffer), lambda piece: None)
        for path in small:
            opened.read_small({files[path].sha256: files[path].size})
        opened.close()

    assert buffer == data
    assert clock.now == pytest.approx((CHUNK_BYTES + 3 * 500_000) / 1_000_000)


def test_without_a_rate_nobody_waits() -> None:
    """However much is spent."""
    clock = Clock()
    pace = Pace(None, clock.tell, clock.sleep)

    pace.spend(10**12)

    assert clock.now == 0


@pytest.mark.parametrize("rate", [0, -1, "fast"])
def test_a_rate_that_is_none_is_refused(node: TestNode, rate: object) -> None:
    """A request with one moves nothing."""
    node.mirror.add("config.json", json.dumps({}).encode())

    with pytest.raises(NodeError, match="no number of bytes a second"):
        node.deliver(max_rate=rate)
