"""Several nodes that need the same weights at once."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nodes import TestNode
from tests.support.peers import Gang
from trainctl.model.files import CHUNK_BYTES

SEED = 20261122
MakeGang = Callable[[int], Gang]


@pytest.fixture
def gang(tmp_path: Path) -> MakeGang:
    """Makes so many nodes, whose mirror holds a file of several chunks and some small ones."""

    def make(count: int) -> Gang:
        made = Gang(tmp_path, count)
        numbers = random.Random(SEED)
        made.mirror.add("model.bin", numbers.randbytes(7 * CHUNK_BYTES + 99))
        for number in range(40):
            made.mirror.add(f"small/{number:02}.json", numbers.randbytes(20_000))
        return made

    return make


def _check(node: TestNode) -> None:
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
    assert sum(one["bytes_origin"] for one in results) == sent
    assert [one["bytes_origin"] + one["bytes_peers"] for one in results] == [size] * 3


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
        chunks = bytearray(8)
        chunks[first : first + 2] = b"\1\1"
        (partial / f"{digest}.map").write_bytes(chunks)

    results, sent = nodes.deliver()

    for node in nodes.nodes:
        _check(node)
    held = 4 * CHUNK_BYTES
    assert sent == nodes.mirror.listing.size - held
    assert [one["bytes_node"] for one in results] == [held // 2, held // 2, 0, 0]
