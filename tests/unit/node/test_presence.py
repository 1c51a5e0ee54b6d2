"""Weights of which a node has the complete content."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.node_program.nodes import NodeHarness
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.node.cache.disk_space import cache_query
from trainctl.node.system.blob_files import PartialFile
from trainctl.node.system.layout import layout_of
from trainctl.store import keys
from trainctl.store.backends.directory import DirectoryObjects


def test_only_complete_blobs_are_reported(tmp_path: Path) -> None:
    """Not files that a delivery left incomplete; those in the shared cache by listing."""
    node = NodeHarness(tmp_path, sys.executable)
    for number in range(2):
        node.mirror.add(f"f{number}", b"x" * (number + 1))
        node.deliver(lease=f"run-{number}")
    leased, other = (file.sha256 for file in node.mirror.listing.files)
    node.mirror.add("large", noise(2 * CHUNK_BYTES + 5))
    large = next(file for file in node.mirror.listing.files if file.path == "large")
    partial = PartialFile(layout_of({"root": str(node.root)}).files, large)
    partial.missing()
    partial.write(2, bytearray(node.mirror.files["large"][-5:]))
    partial.close()
    many = [f"{number:064x}" for number in range(2_500)]
    shared = Listing((ListedFile("seven", 1, many[7]),))
    DirectoryObjects(tmp_path / "shared").put(keys.listing(shared.id), shared.to_bytes())
    node.call("release", {"key": "run-1"})
    request: Any = {
        "root": str(node.root), "listings": [shared.id], "blobs": [leased, other, large.sha256, *many], "room": True,
        "shared": {"dir": str(tmp_path / "shared"), "size": None},
    }  # fmt: skip
    answer = cache_query(request)

    assert answer["blobs"] == [leased, other]
    assert answer["leased"] == [leased]
    assert answer["shared"] == [many[7]]
