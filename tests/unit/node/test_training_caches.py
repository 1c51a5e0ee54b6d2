"""Training caches on a node: who keeps them, what they hold, making room in them."""

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
    """A cache in the node's own place, held by one state, with an old file, a new one, and links that lead out."""
    directory = node.root / "caches" / "demo"
    node.call("make_cache", held(directory))
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


def held(directory: Path, lineage: str = "one", owner: str = "demo-lab") -> dict[str, Any]:
    """A request about a directory in an owner's name."""
    return {"directory": str(directory), "lineage": lineage, "owner": owner}


def rows(node: NodeHarness, directory: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What a walk finds, by path, and the totals."""
    lines = node.raw("read_cache", {"directory": str(directory)}).splitlines()
    *found, total = [json.loads(line) for line in lines]
    return {row[0]: row[1:] for row in found}, total


def state(node: NodeHarness, directory: Path, **changes: str) -> dict[str, Any]:
    """What a plan is told of a cache."""
    request = {"lineage": "one", "caches": [held(directory, **changes)]}
    found: dict[str, Any] = node.call("cache_state", request)["caches"][0]
    return found


@pytest.mark.parametrize("other", [("two", "demo-lab"), ("one", "other-lab")])
@pytest.mark.parametrize("outside", [False, True])
def test_the_last_owner_takes_it_along(
    node: NodeHarness, other: tuple[str, str], outside: bool
) -> None:
    """Two states, or two projects of one, share it: the first to let go leaves it, the second takes it along."""
    directory = (node.base if outside else node.root / "caches") / "shared"
    node.call("make_cache", held(directory))
    node.call("make_cache", held(directory, *other))
    (directory / "data").write_bytes(b"12345")

    assert state(node, directory)["others"] == ["+".join(other)]
    first = node.call("remove_cache", held(directory))
    kept = (directory / "data").exists()
    second = node.call("remove_cache", held(directory, *other))

    assert (first["removed"], kept, second["removed"]) == (False, True, True)
    assert second["bytes"] >= 5
    assert not directory.exists()
    assert list((node.root / "training").iterdir()) == []


def test_a_state_lets_go_of_all_its_owners_at_once(node: NodeHarness) -> None:
    """Without an owner the whole lineage lets go, and nobody else does."""
    directory = node.root / "caches" / ".team"
    for one in (("one", "a"), ("one", "b"), ("two", "a")):
        node.call("make_cache", held(directory, *one))

    request = {"directory": str(directory), "lineage": "one"}

    assert not node.call("remove_cache", request)["removed"]
    assert state(node, directory, lineage="three")["others"] == ["two+a"]
    assert node.call("remove_cache", {**request, "lineage": "two"})["removed"]


def test_a_directory_that_was_there_before_is_never_removed(
    node: NodeHarness, tmp_path: Path
) -> None:
    """A cache at a directory that the user had made is let go of, and what was ours in it goes."""
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "data").write_bytes(b"x")
    node.call("make_cache", held(directory))

    assert not state(node, directory)["ours"]
    assert not node.call("remove_cache", held(directory))["removed"]
    assert [path.name for path in directory.iterdir()] == ["data"]


def test_the_node_itself_is_no_cache(node: NodeHarness) -> None:
    """A directory that holds the node's own things is refused."""
    with pytest.raises(NodeProgramError, match="contains trainctl's root directory"):
        node.call("make_cache", held(node.root))


def test_a_walk_counts_what_is_there_and_follows_no_link(node: NodeHarness, cache: Path) -> None:
    """Directories add up what is below them; a link is itself; what is ours isn't shown."""
    found, total = rows(node, cache)

    assert sorted(found) == ["new", "new/c.bin", "old", "old/away", "old/b.bin", "old/deep", "old/deep/a.bin"]  # fmt: skip
    assert [found[name][0] for name in ("old", "old/deep", "new", "old/away")] == [2000, 1000, 1000, 0]  # fmt: skip
    assert (total["files"], total["bytes"], total["whole"]) == (4, 3000, True)


def test_a_summary_spares_the_walk(node: NodeHarness, cache: Path) -> None:
    """What was found last is told, until somebody looks again; a cache that nobody looked at yet is looked at briefly."""
    assert state(node, cache)["bytes"] == 3000
    rows(node, cache)
    (cache / "more").write_bytes(b"x" * 500)
    assert state(node, cache)["bytes"] == 3000
    rows(node, cache)
    assert state(node, cache)["bytes"] == 3500


def test_the_end_of_a_run_renews_the_summary(node: NodeHarness, cache: Path) -> None:
    """The supervisor looks at the caches of its run once that has ended."""
    rows(node, cache)
    node.run(f"head -c 700 /dev/zero > {cache}/by-the-job", caches=[str(cache)])

    assert wait_for(lambda: state(node, cache)["bytes"] == 3700)


def test_what_is_old_goes(node: NodeHarness, cache: Path) -> None:
    """Files, links and directories that were emptied; nothing that a link leads to; a dry run removes nothing."""
    request = {"directory": str(cache), "older_than_seconds": 30 * DAY}
    dry = node.call("clear_cache", {**request, "dry_run": True})
    before = sorted(rows(node, cache)[0])
    done = node.call("clear_cache", request)

    assert dry == done == {"files": 3, "bytes": 2000, "left": 0}
    assert "old/deep/a.bin" in before
    assert sorted(rows(node, cache)[0]) == ["new", "new/c.bin"]
    assert state(node, cache)["bytes"] == 1000
    assert (node.base / "outside" / "precious").read_text() == "keep"


def test_everything_goes_but_what_comes_meanwhile(node: NodeHarness, cache: Path) -> None:
    """Without an age all goes that was there when the call began; a file from a moment later stays."""
    later = cache / "later"
    later.write_text("x")
    os.utime(later, (time.time(), time.time() + 600))

    done = node.call("clear_cache", {"directory": str(cache)})

    assert (done["files"], done["left"]) == (4, 0)
    assert sorted(rows(node, cache)[0]) == ["later"]
    assert not state(node, cache)["others"]


def test_a_cache_in_use_is_not_cleared(node: NodeHarness, cache: Path) -> None:
    """The run that uses it is named, of whichever state it is; looking is allowed, and so is clearing after its end."""
    node.start(node.spec("sleep 60", caches=[str(cache)]))
    request = {"directory": str(cache)}

    assert node.call("clear_cache", {**request, "dry_run": True})["files"] == 4
    with pytest.raises(NodeProgramError, match=r"in use by run 1 of job\.sft") as refused:
        node.call("clear_cache", request)
    assert refused.value.kind == "busy"
    node.call("stop", {"key": "run-1", "grace_seconds": 0})
    assert node.call("clear_cache", request)["files"] == 4


def test_what_may_not_be_removed_is_counted(any_node: NodeHarness) -> None:
    """A directory without write permission keeps its files, unless one is root; the rest goes."""
    directory = any_node.root / "caches" / "demo"
    any_node.call("make_cache", held(directory))
    any_node.run(
        f"cd {directory}; mkdir locked open; touch locked/a open/b; chmod 0500 locked; touch done"
    )

    done = any_node.call("clear_cache", {"directory": str(directory)})

    expected = (2, 1) if any_node.prefix else (3, 0)
    assert (done["files"], done["left"]) == expected


def test_names_are_what_they_are(node: NodeHarness) -> None:
    """Names with line ends, and such that are no text, come through whole."""
    directory = node.root / "caches" / "demo"
    node.call("make_cache", held(directory))
    names = [b"two\nlines", b"\xff\xfe", b"-rf", "ключ".encode()]
    for name in names:
        (Path(os.fsdecode(os.fsencode(directory) + b"/" + name))).write_text("x")

    assert sorted(os.fsencode(name) for name in rows(node, directory)[0]) == sorted(names)
