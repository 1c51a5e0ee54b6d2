"""What outlives a run: checkpoints and training caches."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from tests.support.nodes import NodeError, TestNode


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """The checkpoint directory of a run, with two checkpoints, a loose file and two ranks."""
    directory = tmp_path / "data" / "checkpoints" / "p" / "sft" / "1-abc"
    now = time.time()
    for name, age in [
        ("rank-0/checkpoint-10/a.bin", 300),
        ("rank-0/checkpoint-20/deep/b.bin", 1),
        ("rank-0/final.bin", 30),
        ("rank-1/checkpoint-20/c.bin", 200),
    ]:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
        os.utime(path, (now - age, now - age))
    (directory / "rank-0" / "checkpoint-10" / "link").symlink_to("/etc/passwd")
    return directory


def test_checkpoints_are_listed_with_their_step_and_completeness(
    node: TestNode, checkpoints: Path
) -> None:
    """One that was quiet for a minute is complete, and so is one with a newer beside it; the newest isn't yet."""
    found = node.call("checkpoints", {"directory": str(checkpoints)})["checkpoints"]

    assert [(c["rank"], c["name"], c["step"], c["files"], c["complete"]) for c in found] == [
        (0, "checkpoint-10", 10, 1, True),
        (1, "checkpoint-20", 20, 1, True),
        (0, ".", None, 1, True),
        (0, "checkpoint-20", 20, 1, False),
    ]
    assert found[0]["bytes"] == len("rank-0/checkpoint-10/a.bin")


def test_of_an_ended_run_every_checkpoint_is_complete(node: TestNode, checkpoints: Path) -> None:
    """Nothing can be added any more."""
    found = node.call("checkpoints", {"directory": str(checkpoints), "ended": True})["checkpoints"]

    assert all(one["complete"] for one in found)


def test_a_run_without_checkpoints_has_none(node: TestNode, tmp_path: Path) -> None:
    """A directory that was never made is no error."""
    assert node.call("checkpoints", {"directory": str(tmp_path / "no")}) == {"checkpoints": []}


def test_a_checkpoint_is_read_as_a_tar(node: TestNode, checkpoints: Path) -> None:
    """Its files come with their paths inside it; links are not followed and not taken."""
    request = {"directory": str(checkpoints / "rank-0"), "name": "checkpoint-20"}

    with tarfile.open(fileobj=io.BytesIO(node.raw("read_checkpoint", request))) as archive:
        assert archive.getnames() == ["deep/b.bin"]
    request["name"] = "."
    with tarfile.open(fileobj=io.BytesIO(node.raw("read_checkpoint", request))) as archive:
        assert archive.getnames() == ["final.bin"]


@pytest.mark.parametrize("name", ["../../../..", "/etc", "a//b", "none"])
def test_a_checkpoints_name_leads_nowhere_else(
    node: TestNode, checkpoints: Path, name: str
) -> None:
    """Names that lead out, and names of nothing, are errors."""
    with pytest.raises(NodeError):
        node.raw("read_checkpoint", {"directory": str(checkpoints), "name": name})


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
