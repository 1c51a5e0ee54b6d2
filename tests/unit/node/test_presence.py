"""What a node has of contents that it is asked about, be they few or very many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.protocol.weights import CacheQueryResponse
from trainctl.node.cache import inventory
from trainctl.node.cache.disk_space import cache_query
from trainctl.node.cache.listings import load_listing
from trainctl.node.system.blob_files import PartialFile
from trainctl.node.system.layout import layout_of

MANY = [f"{number:064x}" for number in range(2_500)]


@pytest.fixture
def node(tmp_path: Path) -> NodeHarness:
    """A node to which two listings were delivered, for runs that have not begun."""
    node = NodeHarness(tmp_path, sys.executable)
    for number in range(2):
        node.mirror.add(f"f{number}", b"x" * (number + 1))
        node.deliver(lease=f"run-{number}")
    return node


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The documents of listings that are read."""
    found: list[Path] = []

    def noted(place: Path) -> Listing | None:
        found.append(place)
        return load_listing(place)

    monkeypatch.setattr(inventory, "load_listing", noted)
    return found


def _query(node: NodeHarness, **asked: Any) -> CacheQueryResponse:
    """What the node has of what is asked."""
    nothing = {"listings": [], "blobs": [], "room": False}
    request: Any = {"root": str(node.root), **nothing, **asked}
    return cache_query(request)


def test_leased_listings_are_read_once_for_all_that_is_asked(
    node: NodeHarness, read: list[Path]
) -> None:
    """For how much room there is, and for which contents live runs have."""
    first, second = (file.sha256 for file in node.mirror.listing.files)
    answer = _query(node, blobs=[first, second, MANY[1]], room=True)

    assert (answer["blobs"], answer["leased"]) == ([first, second], [first, second])
    assert len(read) == len(set(read)) == 2


def test_only_whole_content_is_here(node: NodeHarness, tmp_path: Path) -> None:
    """Not what a delivery left half fetched; the shared cache's content is told by name, leased listings are read once."""
    mine, other = (file.sha256 for file in node.mirror.listing.files)
    node.mirror.add("large", noise(2 * CHUNK_BYTES + 5))
    file = next(file for file in node.mirror.listing.files if file.path == "large")
    layout = layout_of({"root": str(node.root)})
    partial = PartialFile(layout.files, file)
    partial.missing()
    partial.write(2, bytearray(node.mirror.files["large"][-5:]))
    partial.close()
    shared = tmp_path / "shared" / "blobs" / "sha256" / "00" / MANY[7]
    shared.parent.mkdir(parents=True)
    shared.touch()
    node.call("release", {"key": "run-1"})

    answer = _query(
        node,
        blobs=[mine, other, file.sha256, *MANY],
        room=True,
        shared={"dir": str(tmp_path / "shared"), "size": None},
    )

    assert answer["blobs"] == [mine, other]
    assert answer["leased"] == [mine]
    assert answer["shared"] == [MANY[7]]
