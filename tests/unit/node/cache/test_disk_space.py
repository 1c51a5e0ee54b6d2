"""Space for weights in the node's cache: what is stored, held and evicted."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture, NodeHarness, NodeProgramError
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.node.cache.disk_space import cache_query
from trainctl.node.system.blob_files import PartialFile
from trainctl.node.system.layout import layout_of
from trainctl.store import keys
from trainctl.store.objects import DirectoryObjects

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
        weights = [{"address": name, "listing": self.listing(name), "mount_location": "w"}]
        more = {"key": f"run-{name}", "cache": str(self.place), "weights": weights}
        return self.node.start(self.node.spec(*commands, **more))

    def seal(self, name: str) -> Path:
        """The file that marks a tree as complete."""
        return self.place / "complete" / f"{self.listing(name)}.json"

    @property
    def held(self) -> list[str]:
        """The names of the listings that are here."""
        trees = {path.name for path in (self.place / "trees").glob("*")}
        return sorted(name for name in self.mirrors if self.listing(name) in trees)

    def age(self, *names: str) -> None:
        """Let deliveries be two days old: their runs never came."""
        for name in names:
            for path in (self.place / "holds" / f"run-{name}").iterdir():
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_weights_of_live_runs_are_not_evicted(cache: Cache) -> None:
    """Nor those of runs that have not started yet; the error names the runs and their bytes."""
    cache.deliver("a")
    cache.start("a", "sleep 60")
    cache.deliver("b")

    with pytest.raises(NodeProgramError) as raised:
        cache.deliver("c")

    assert raised.value.kind == "InsufficientSpace"
    assert "need 100 kB and may use 50.0 kB (cache size: 250 kB)" in str(raised.value)
    assert "job.sft run 1 (abcdefg) 100 kB" in str(raised.value)
    assert "a run that has not started yet 100 kB" in str(raised.value)
    assert cache.held == ["a", "b"]


@pytest.mark.integration
def test_weights_of_one_run_that_exceed_the_cache_are_a_full_disk(cache: Cache) -> None:
    """No end of another run would help."""
    cache.settings["size"] = SIZE * 3 // 2
    cache.deliver("a")

    with pytest.raises(NodeProgramError) as others:
        cache.deliver("b")
    with pytest.raises(NodeProgramError, match="this run 100 kB") as own:
        cache.node.deliver(cache=cache.settings, lease="run-a")

    assert (own.value.kind, others.value.kind) == ("StorageError", "InsufficientSpace")


@pytest.mark.integration
def test_a_failed_delivery_leaves_what_a_run_holds(cache: Cache) -> None:
    cache.deliver("a")
    cache.start("a", "sleep 60")
    cache.seal("a").unlink()
    for part in ("blobs", "trees"):
        shutil.rmtree(cache.place / part)
    with pytest.raises(NodeProgramError):
        cache.deliver("a", mirror={"path": str(cache.place / "none")})
    assert (cache.place / "holds" / "run-a" / cache.listing("a")).exists()


@pytest.mark.integration
@pytest.mark.parametrize("how", ["ended", "lost", "removed", "never came"])
def test_a_run_that_is_over_holds_nothing(cache: Cache, how: str) -> None:
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


@pytest.mark.integration
def test_evicting_by_hand(cache: Cache) -> None:
    """By a prefix of an id, or everything; weights of a live run stay and name it."""
    for name in ("a", "b"):
        cache.deliver(name)
    cache.start("a", "sleep 60")
    cache.age("b")

    dry = cache.call("cache_evict", listings=None, dry_run=True)["listings"]
    inspected = cache.call("inspect")
    with pytest.raises(NodeProgramError, match="invalid listing id"):  # one letter fits half of all
        cache.call("cache_evict", listings=["a"])
    kept = cache.call("cache_evict", listings=[cache.listing("a")[:12]])
    gone = cache.call("cache_evict", listings=None)

    outcomes = {row["id"]: row["outcome"] for row in dry}
    assert outcomes == {cache.listing("a"): "leased", cache.listing("b"): "evicted"}
    assert kept["listings"][0]["leased_by"] == ["job.sft run 1 (abcdefg)"]
    assert [run["project"] for run in inspected["runs"]] == ["project"]
    projects = {row["id"]: row["projects"] for row in inspected["cache"]["listings"]}
    assert projects == {cache.listing("a"): ["project"], cache.listing("b"): []}
    assert (kept["freed"], gone["freed"]) == (0, SIZE)
    assert cache.held == ["a"]


@pytest.mark.integration
def test_the_last_lineage_leaves_the_directory_as_it_was(cache: Cache) -> None:
    cache.place.mkdir()
    (cache.place / "mine").write_text("x")
    cache.deliver("a")

    left = cache.call("forget", lineage="lineage-1")

    assert left == {"freed": SIZE, "empty": True}
    assert [path.name for path in cache.place.iterdir()] == ["mine"]


@pytest.mark.integration
def test_forgetting_a_cache_keeps_weights_of_live_runs(cache: Cache) -> None:
    cache.deliver("a")
    cache.start("a", "sleep 60")
    cache.deliver("b")
    cache.age("b")

    cache.call("forget_cache", lineage="lineage-1")

    assert cache.held == ["a"]


@pytest.mark.integration
@pytest.mark.parametrize("live", [False, True])
def test_a_listing_with_wrong_bytes_is_removed(cache: Cache, live: bool) -> None:
    """Also if its times are unchanged. A live run keeps its tree, but no other run can start with it."""
    cache.deliver("a")
    if live:
        cache.start("a", "sleep 60")
    else:
        cache.age("a")
    file = cache.place / "trees" / cache.listing("a") / "model.bin"
    times = file.stat()
    file.chmod(0o644)
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    (row,) = cache.call("cache_verify")["listings"]

    outcome = "corrupt" if live else "evicted"
    assert (row["outcome"], row["corrupt_files"]) == (outcome, ["model.bin"])
    assert cache.held == (["a"] if live else [])
    assert not cache.seal("a").exists()


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
