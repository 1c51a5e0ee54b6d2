"""A node's cache that may hold only so much, or lies elsewhere: who makes room, who keeps what, and for how long."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture, NodeHarness, NodeProgramError

pytestmark = pytest.mark.integration

SIZE = 100_000


class Cache:
    """A node whose cache has room for two and a half of the listings that its mirrors hold."""

    def __init__(self, node: NodeHarness, place: Path) -> None:
        self.node = node
        self.place = place
        self.settings = {"dir": str(place), "size": SIZE * 5 // 2}
        self.mirrors: dict[str, MirrorFixture] = {}

    def deliver(self, name: str, **changes: Any) -> dict[str, Any]:
        """Deliver a listing of one file of its own, for a run of the same name."""
        mirror = self.mirrors.setdefault(name, MirrorFixture(self.node.base / f"mirror-{name}"))
        if not mirror.files:
            mirror.add("model.bin", os.urandom(SIZE))
        self.node.mirror = mirror
        return self.node.deliver(cache=self.settings, lease=f"run-{name}", **changes)

    def listing(self, name: str) -> str:
        """A listing's id."""
        return self.mirrors[name].listing.id

    def start(self, name: str, *commands: str) -> dict[str, Any]:
        """Start the run that the listing was delivered for."""
        weights = [{"name": name, "listing": self.listing(name), "mount_location": "w"}]
        more = {"key": f"run-{name}", "cache": str(self.place), "weights": weights}
        return self.node.start(self.node.spec(*commands, **more))

    @property
    def held(self) -> list[str]:
        """The listings that are here, by name."""
        trees = {path.name for path in (self.place / "trees").glob("*")}
        return sorted(name for name in self.mirrors if self.listing(name) in trees)

    def age(self, *names: str) -> None:
        """Let deliveries be two days old: their runs never came."""
        for name in names:
            for path in (self.place / "leases" / f"run-{name}").iterdir():
                os.utime(path, (1, 1))

    def used_at(self, name: str, when: int) -> None:
        """Let a listing have been used last at that time."""
        for path in self.place.glob(f"references/*/{self.listing(name)}.json"):
            os.utime(path, (when, when))

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Call a verb about this cache."""
        return self.node.call(method, {"cache": self.settings, **request})


@pytest.fixture
def cache(node: NodeHarness, tmp_path: Path) -> Cache:
    """An empty cache in a directory of its own."""
    return Cache(node, tmp_path / "nvme")


def test_the_listing_used_longest_ago_makes_room(cache: Cache) -> None:
    """And with it the blobs that only it had; under ROOT there is no cache at all."""
    for name in ("a", "b"):
        cache.deliver(name)
    cache.age("a", "b")
    cache.used_at("a", 2000)
    cache.used_at("b", 1000)

    cache.deliver("c", lineage="another")

    assert cache.held == ["a", "c"]
    assert len([path for path in (cache.place / "blobs").rglob("*") if path.is_file()]) == 2
    assert not (cache.node.root / "cache").exists()


def test_a_map_that_a_killed_delivery_left_takes_no_room(cache: Cache) -> None:
    """It is no content: nothing has to go for it; and it goes with the next thing that does."""
    cache.deliver("a")
    cache.age("a")
    orphan = cache.place / "partial" / f"{'0' * 64}.map"
    orphan.write_bytes(b"\1" * SIZE)
    cache.deliver("b")
    assert cache.held == ["a", "b"]
    cache.age("b")

    cache.deliver("c")

    assert len(cache.held) == 2
    assert not orphan.exists()


def test_the_beginning_of_a_tree_that_nobody_refers_to_goes(cache: Cache) -> None:
    """A delivery was killed while it made the tree, and then its lineage was forgotten by another: nothing else names it."""
    cache.deliver("a")
    cache.age("a")
    tree = cache.place / "trees" / cache.listing("a")
    tree.rename(cache.place / "partial" / f"tree-{cache.listing('a')}")
    (cache.place / "complete" / f"{cache.listing('a')}.json").unlink()
    for reference in cache.place.glob("references/*/*"):
        reference.unlink()

    said = cache.call("cache_evict", listings=None)

    assert said["freed"] == SIZE
    assert not [path for path in cache.place.rglob("*") if path.stat().st_size == SIZE]


def test_a_tree_that_was_being_removed_goes(cache: Cache) -> None:
    """An earlier program gave it a name that was never given again; it may be the last to link what the listing names."""
    cache.deliver("a")
    cache.age("a")
    tree = cache.place / "trees" / cache.listing("a")
    tree.rename(cache.place / "partial" / f".gone-{cache.listing('a')}.77.c0ffee")

    said = cache.call("cache_evict", listings=None)

    assert said["freed"] == SIZE
    assert not [path for path in cache.place.rglob("*") if path.stat().st_size == SIZE]


def test_a_tree_that_nobody_knows_makes_room(cache: Cache) -> None:
    """A delivery was killed before it sealed the tree, and its lineage's end before it removed it: nothing tells its contents."""
    for name in ("a", "b"):
        cache.deliver(name)
    cache.age("a")
    (cache.place / "complete" / f"{cache.listing('a')}.json").unlink()
    for reference in cache.place.glob(f"references/*/{cache.listing('a')}.json"):
        reference.unlink()

    cache.deliver("c")

    assert cache.held == ["b", "c"]


def test_what_live_runs_need_is_never_evicted(cache: Cache) -> None:
    """A run that goes on and a delivery whose run is still to come hold theirs; the error says who and how much."""
    cache.deliver("a")
    cache.start("a", "sleep 60")
    cache.deliver("b")

    with pytest.raises(NodeProgramError) as raised:
        cache.deliver("c")

    assert raised.value.kind == "room"
    assert "need 100 kB and may use 50.0 kB (cache size: 250 kB)" in str(raised.value)
    assert "job.sft run 1 (abcdefg) 100 kB" in str(raised.value)
    assert "a run that has not started yet 100 kB" in str(raised.value)
    assert cache.held == ["a", "b"]


def test_what_no_end_of_a_run_makes_fit_is_a_full_disk(cache: Cache) -> None:
    """A run's own weights together are too much for the cache: there is nothing to wait for, whoever else holds something."""
    cache.settings["size"] = SIZE * 3 // 2
    cache.deliver("a")
    mirror = cache.mirrors["b"] = MirrorFixture(cache.node.base / "mirror-b")
    mirror.add("model.bin", os.urandom(SIZE))
    cache.node.mirror = mirror

    with pytest.raises(NodeProgramError) as own:
        cache.node.deliver(cache=cache.settings, lease="run-a")
    with pytest.raises(NodeProgramError) as others:
        cache.node.deliver(cache=cache.settings, lease="run-b")

    assert own.value.kind == "storage"
    assert "this run 100 kB" in str(own.value)
    assert others.value.kind == "room"


@pytest.mark.parametrize("how", ["ended", "lost", "removed", "never came"])
def test_a_run_that_is_over_holds_nothing(cache: Cache, how: str) -> None:
    """Whether it ended, was lost with its supervisor, was removed, or never came: nobody has to clean up."""
    cache.deliver("a")
    cache.deliver("b")
    if how == "never came":
        cache.age("a")
    else:
        cache.start("a", "true" if how == "ended" else "sleep 60")
        if how == "lost":
            os.kill(cache.node.status("run-a")["pid"], 9)
        elif how == "removed":
            cache.node.call("stop", {"key": "run-a", "grace_seconds": 0})
            cache.node.call("remove", {"key": "run-a"})
        else:
            cache.node.ended("run-a")

    cache.deliver("c")

    assert cache.held == ["b", "c"]


def test_a_failed_delivery_holds_nothing(cache: Cache) -> None:
    """Its lease is given back, so that others have the room."""
    cache.deliver("a")
    cache.deliver("b")
    with pytest.raises(NodeProgramError):
        cache.deliver("c")

    assert not list(cache.place.glob("leases/run-c/*"))


def test_a_run_without_its_weights_is_told(cache: Cache) -> None:
    """Weights that were evicted before the run came are an error of the run, never a mount of nothing."""
    cache.deliver("a")
    cache.age("a")
    cache.call("cache_evict", listings=None)

    status = cache.start("a", "ls w")

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "are not present on this node" in status["error"]


def test_a_seal_that_was_put_aside_is_put_back(cache: Cache) -> None:
    """Who was killed while deciding about a tree leaves it whole: a run finds it, and nothing is fetched."""
    cache.deliver("a")
    completion_marker = cache.place / "complete" / f"{cache.listing('a')}.json"
    completion_marker.rename(completion_marker.with_suffix(".pending"))

    status = cache.start("a", "cmp w/model.bin w/model.bin")

    assert cache.node.ended("run-a")["status"] == "TRAINING_JOB_COMPLETED", status
    assert completion_marker.exists()


def test_evicting_by_hand(cache: Cache) -> None:
    """By the beginning of an id, or everything; what a live run has stays and says whose it is; dry runs take nothing."""
    for name in ("a", "b"):
        cache.deliver(name)
    cache.start("a", "sleep 60")
    cache.age("b")

    told = cache.call("cache_evict", listings=None, dry_run=True)["listings"]
    found = cache.call("inspect")
    kept = cache.call("cache_evict", listings=[cache.listing("a")[:12]])
    gone = cache.call("cache_evict", listings=None)

    assert {row["id"]: row["outcome"] for row in told} == {
        cache.listing("a"): "leased",
        cache.listing("b"): "evicted",
    }
    assert kept["listings"][0]["leased_by"] == ["job.sft run 1 (abcdefg)"]
    assert [run["project"] for run in found["runs"]] == ["project"]
    projects = {one["id"]: one["projects"] for one in found["cache"]["listings"]}
    assert projects == {cache.listing("a"): ["project"], cache.listing("b"): []}
    assert (kept["freed"], gone["freed"]) == (0, SIZE)
    assert cache.held == ["a"]


def test_a_short_id_is_refused(cache: Cache) -> None:
    """One letter would evict half of the cache."""
    cache.deliver("a")

    with pytest.raises(NodeProgramError, match="invalid listing id"):
        cache.call("cache_evict", listings=["a"])


def test_a_file_larger_than_the_limit_evicts_nothing(cache: Cache) -> None:
    """What can't fit in any case takes nothing away from others."""
    cache.deliver("a")
    cache.age("a")
    cache.mirrors["huge"] = MirrorFixture(cache.node.base / "mirror-huge")
    cache.mirrors["huge"].add("model.bin", os.urandom(SIZE * 3))

    with pytest.raises(NodeProgramError, match="may use 250"):
        cache.deliver("huge")

    assert cache.held == ["a"]


def test_two_roots_share_a_cache(cache: Cache, tmp_path: Path) -> None:
    """What a run under one ROOT needs isn't evicted from under the other, nor by the end of the other's lineage."""
    cache.deliver("a")
    cache.start("a", "sleep 60")
    first, cache.node.root = cache.node.root, tmp_path / "other"
    cache.deliver("b", lineage="another")
    cache.age("b")
    cache.deliver("c", lineage="another")
    held = cache.held
    cache.call("forget", lineage="another")
    left = cache.held
    cache.call("forget", lineage="lineage-1")
    cache.node.root = first

    assert (held, left) == (["a", "c"], ["a"])
    assert cache.held == ["a"]


def test_the_last_lineage_leaves_the_directory_as_it_was(cache: Cache) -> None:
    """A cache elsewhere is emptied of what is ours, and of nothing else."""
    cache.place.mkdir()
    (cache.place / "mine").write_text("x")
    cache.deliver("a")

    left = cache.call("forget", lineage="lineage-1")

    assert left == {"freed": SIZE, "empty": True}
    assert [path.name for path in cache.place.iterdir()] == ["mine"]


def test_a_cache_that_is_left_for_another(cache: Cache) -> None:
    """What live runs need of it stays; the rest goes."""
    cache.deliver("a")
    cache.start("a", "sleep 60")
    cache.deliver("b")
    cache.age("b")

    cache.call("forget_cache", lineage="lineage-1")

    assert cache.held == ["a"]


def test_how_much_room_there_is(cache: Cache) -> None:
    """What live runs have is taken; all else would make room."""
    cache.deliver("a")
    cache.deliver("b")
    cache.age("b")
    blobs = [file.sha256 for name in "ab" for file in cache.mirrors[name].listing.files]

    told = cache.node.cached(cache=cache.settings, blobs=blobs, room=True)

    assert told["room"] == SIZE * 3 // 2
    assert told["most"] == SIZE * 5 // 2
    assert told["leased"] == blobs[:1]


def damage(path: Path, at: int) -> None:
    """Flip a bit, and leave the times as they were."""
    times = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    path.chmod(0o444)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("live", [False, True])
def test_a_listing_with_wrong_bytes_is_removed(cache: Cache, live: bool) -> None:
    """A flipped bit that no time gives away is found. A live run keeps its tree, but no other run begins to use it."""
    cache.deliver("a")
    if live:
        cache.start("a", "sleep 60")
    else:
        cache.age("a")
    damage(cache.place / "trees" / cache.listing("a") / "model.bin", 5)

    said = cache.call("cache_verify")["listings"]

    outcome = "corrupt" if live else "evicted"
    assert [(row["outcome"], row["corrupt_files"]) for row in said] == [(outcome, ["model.bin"])]
    assert cache.held == (["a"] if live else [])
    assert not (cache.place / "complete" / f"{cache.listing('a')}.json").exists()


def test_the_next_delivery_fetches_what_was_wrong(cache: Cache) -> None:
    """Only that: a right file of the same listing is linked again from the blob that stayed."""
    mirror = cache.mirrors["a"] = MirrorFixture(cache.node.base / "mirror-a")
    for name in ("right.bin", "wrong.bin"):
        mirror.add(name, os.urandom(SIZE))
    cache.deliver("a")
    cache.age("a")
    damage(cache.place / "trees" / cache.listing("a") / "wrong.bin", 5)
    cache.call("cache_verify")

    result = cache.deliver("a")

    assert result["bytes_mirror"] == SIZE
    tree = cache.place / "trees" / cache.listing("a")
    assert {path.name: path.read_bytes() for path in tree.iterdir()} == mirror.files


def test_a_failed_delivery_leaves_a_live_run_its_lease(cache: Cache) -> None:
    """The run still uses what it has, although its corrupt listing could not be fetched again."""
    cache.deliver("a")
    cache.start("a", "sleep 60")
    damage(cache.place / "trees" / cache.listing("a") / "model.bin", 5)
    cache.call("cache_verify")

    with pytest.raises(NodeProgramError):
        cache.deliver("a", mirror={"type": "objects", "path": "/nowhere"})

    assert (cache.place / "leases" / "run-a" / cache.listing("a")).exists()


def test_a_whole_cache_is_said_to_be_whole(cache: Cache) -> None:
    """Every byte is read once, also of a content that two listings share, and nothing is fetched."""
    cache.deliver("a")
    cache.mirrors["b"] = MirrorFixture(cache.node.base / "mirror-b")
    cache.mirrors["b"].add("same.bin", cache.mirrors["a"].files["model.bin"])
    cache.deliver("b")

    told = cache.call("cache_verify")

    assert [row["outcome"] for row in told["listings"]] == ["ok", "ok"]
    assert told["bytes"] == SIZE


def test_a_blob_whose_name_is_gone_gets_it_back(cache: Cache) -> None:
    """From the tree that links it: nothing is fetched, and the tree isn't touched."""
    cache.deliver("a")
    digest = cache.mirrors["a"].listing.files[0].sha256
    blob = cache.place / "blobs" / "sha256" / digest[:2] / digest
    blob.unlink()

    cache.deliver("a", mirror={"type": "objects", "path": "/nowhere"})

    assert blob.samefile(cache.place / "trees" / cache.listing("a") / "model.bin")


def test_leases_say_where_their_run_is(cache: Cache) -> None:
    """ROOT, lineage and the process that wrote it: what is needed to know when it is stale."""
    cache.deliver("a")

    lease = json.loads((cache.place / "leases" / "run-a" / cache.listing("a")).read_text())

    assert (lease["lineage"], lease["root"]) == ("lineage-1", str(cache.node.root))
    assert set(lease["holder"]) == {"machine", "boot", "pid", "started"}
