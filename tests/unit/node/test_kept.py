"""What outlives a run: training caches."""

from __future__ import annotations

from pathlib import Path

from tests.support.nodes import TestNode


def test_a_training_cache_goes_with_its_last_lineage(node: TestNode) -> None:
    """Two lineages share it; the first to let go leaves it, the second takes it along."""
    directory = node.root / "caches" / "project"
    request = {"directory": str(directory)}
    node.call("make_cache", {**request, "lineage": "one"})
    node.call("make_cache", {**request, "lineage": "two"})
    (directory / "data").write_bytes(b"12345")

    first = node.call("remove_cache", {**request, "lineage": "one"})
    kept = (directory / "data").exists()
    second = node.call("remove_cache", {**request, "lineage": "two"})

    assert (first["removed"], kept, second["removed"], second["bytes"]) == (False, True, True, 5)
    assert not directory.exists()


def test_a_directory_that_was_there_before_is_never_removed(node: TestNode, tmp_path: Path) -> None:
    """A cache at a directory that the user had made is let go of, not deleted."""
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "data").write_bytes(b"x")
    request = {"directory": str(directory), "lineage": "one"}
    node.call("make_cache", request)

    removed = node.call("remove_cache", request)

    assert not removed["removed"]
    assert (directory / "data").exists()
