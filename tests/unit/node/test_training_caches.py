"""Training caches on a node: who keeps them, what they hold, clearing them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError, wait_for

pytestmark = pytest.mark.integration

DAY = 86_400


@pytest.fixture
def cache(node: NodeHarness) -> Path:
    """A cache in the node's own place with an old directory, a new one, and a link that leads out."""
    directory = node.root / "caches" / "demo"
    node.call("make_cache", owned(directory))
    for name, days in (("old/deep/a.bin", 40), ("old/b.bin", 40), ("new/c.bin", 0)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (time.time(), time.time() - days * DAY))
    outside = node.base / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    os.utime(outside / "precious", (0, 0))
    (directory / "old" / "away").symlink_to(outside)
    os.utime(directory / "old" / "away", (0, 0), follow_symlinks=False)
    return directory


def owned(directory: Path, lineage: str = "one", owner: str = "demo-lab") -> dict[str, Any]:
    """A request about a directory in an owner's name."""
    return {"directory": str(directory), "lineage": lineage, "owner": owner}


def entries(node: NodeHarness, directory: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The entries by path, and the totals."""
    lines = node.raw("read_cache", {"directory": str(directory)}).splitlines()
    *rows, total = [json.loads(line) for line in lines]
    return {row[0]: row[1:] for row in rows}, total


def state(node: NodeHarness, directory: Path, lineage: str = "one") -> dict[str, Any]:
    """What a plan learns about a cache."""
    request = {"lineage": lineage, "caches": [owned(directory, lineage)]}
    answer: dict[str, Any] = node.call("cache_state", request)["caches"][0]
    return answer


@pytest.mark.parametrize("other", [("two", "demo-lab"), ("one", "other-lab")])
@pytest.mark.parametrize("outside", [False, True])
def test_the_last_owner_removes_it(
    node: NodeHarness, other: tuple[str, str], outside: bool
) -> None:
    """Of two states, or of two projects of one state, that share it."""
    directory = (node.base if outside else node.root / "caches") / "shared"
    node.call("make_cache", owned(directory))
    node.call("make_cache", owned(directory, *other))
    (directory / "data").write_bytes(b"12345")

    assert state(node, directory)["others"] == ["+".join(other)]
    first = node.call("remove_cache", owned(directory))
    kept = (directory / "data").exists()
    second = node.call("remove_cache", owned(directory, *other))

    assert (first["removed"], kept, second["removed"]) == (False, True, True)
    assert second["bytes"] >= 5
    assert not directory.exists()
    assert list((node.root / "training").iterdir()) == []


def test_a_directory_that_was_there_before_is_never_removed(
    node: NodeHarness, tmp_path: Path
) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "data").write_bytes(b"x")
    node.call("make_cache", owned(directory))

    assert not state(node, directory)["ours"]
    assert not node.call("remove_cache", owned(directory))["removed"]
    assert [path.name for path in directory.iterdir()] == ["data"]


def test_a_walk_follows_no_link(node: NodeHarness, cache: Path) -> None:
    """Directories add up what is below them; any name is printed completely."""
    names = [b"two\nlines", b"\xff\xfe", b"-rf", "ключ".encode()]
    for name in names:
        Path(os.fsdecode(os.fsencode(cache) + b"/" + name)).write_text("")

    found, total = entries(node, cache)

    listed = ["new", "new/c.bin", "old", "old/away", "old/b.bin", "old/deep", "old/deep/a.bin"]
    assert {os.fsencode(name) for name in found} == {*names, *map(os.fsencode, listed)}
    sizes = [found[name][0] for name in ("old", "old/deep", "new", "old/away")]
    assert sizes == [2000, 1000, 1000, 0]
    assert (total["files"], total["bytes"], total["whole"]) == (8, 3000, True)


def test_plans_use_the_summary_of_the_last_walk(node: NodeHarness, cache: Path) -> None:
    """The end of a run that uses the cache renews it."""
    assert state(node, cache)["bytes"] == 3000
    entries(node, cache)
    (cache / "more").write_bytes(b"x" * 500)
    assert state(node, cache)["bytes"] == 3000
    entries(node, cache)
    assert state(node, cache)["bytes"] == 3500
    node.run(f"head -c 700 /dev/zero > {cache}/by-the-job", caches=[str(cache)])
    assert wait_for(lambda: state(node, cache)["bytes"] == 4200)


def test_clearing_removes_what_is_old(node: NodeHarness, cache: Path) -> None:
    """Files, links and emptied directories; not the target of a link; a dry run removes nothing."""
    request = {"directory": str(cache), "older_than_seconds": 30 * DAY}
    dry = node.call("clear_cache", {**request, "dry_run": True})
    before = sorted(entries(node, cache)[0])
    done = node.call("clear_cache", request)

    assert dry == done == {"files": 3, "bytes": 2000, "left": 0}
    assert "old/deep/a.bin" in before
    assert sorted(entries(node, cache)[0]) == ["new", "new/c.bin"]
    assert state(node, cache)["bytes"] == 1000
    assert (node.base / "outside" / "precious").read_text() == "keep"


def test_a_cache_in_use_is_not_cleared(node: NodeHarness, cache: Path) -> None:
    """The error names the run; a dry run is allowed, and clearing after the run's end."""
    node.start(node.spec("sleep 60", caches=[str(cache)]))
    request = {"directory": str(cache)}

    assert node.call("clear_cache", {**request, "dry_run": True})["files"] == 4
    with pytest.raises(NodeProgramError, match=r"in use by run 1 of job\.sft") as refused:
        node.call("clear_cache", request)
    assert refused.value.kind == "busy"
    node.call("stop", {"key": "run-1", "grace_seconds": 0})
    assert node.call("clear_cache", request)["files"] == 4
