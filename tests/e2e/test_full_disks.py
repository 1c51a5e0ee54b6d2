"""Disks without room and disks that can't be written, as the user meets them: the words, the exit code, and what comes after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import (
    JOB,
    SMALL,
    apply,
    assert_nothing_half_done,
    assert_recovers,
    connect,
    remount,
    small_disk,
    write_weights_manifest,
)
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.storage.mirrors import stored
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in
from trainctl.base.listing import CHUNK_BYTES


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one small repository."""
    with serve() as running:
        running.add("acme/model", SMALL)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, hub: Hub) -> ProjectHarness:
    """A project that wants the repository's weights, and no job yet."""
    connect(fresh, hub)
    write_weights_manifest(fresh, "hf://acme/model")
    return fresh


def test_a_mirror_without_room_says_so_before_anything_moves(
    work: ProjectHarness, hub: Hub
) -> None:
    """The error has the place, what is needed and what is free; no body was asked for, nothing begun; with room it goes on."""
    with small_disk(work.mirror, "20m") as place:
        done = apply(work, 1)
        assert (
            f"error: weights.model: no space left for the mirror {place.as_uri()}: it needs 67.4 MB, and"
            in done.stderr
        )
        assert "or use another location in mirror: {url: …}." in done.stderr
        assert work.json("plan", code=1)["errored"]
        assert not hub.asked("/model.safetensors")
        assert_nothing_half_done(work)
        remount(place, "size=200m")
        assert_recovers(work)


@one_day_in(7)
def test_what_has_arrived_needs_no_room_again(work: ProjectHarness, hub: Hub) -> None:
    """A transfer that broke off goes on where the disk has room for what is missing and not for all of it; the plan says what that is."""
    files = {"model.safetensors": noise(40_000_000)}
    hub.add("acme/model", files)
    hub.faults = [HttpFault("cut", "/model.safetensors", 1000, at=CHUNK_BYTES + 7_000_000)]
    with small_disk(work.mirror, "120m"):
        apply(work, 12)
        hub.faults.clear()
        (line,) = work.json("plan")["weights"]
        listed = work.json("mirror", "list")
        assert (listed["bytes_stored"], listed["bytes_unfinished"]) == (0, CHUNK_BYTES)
        assert line["bytes_mirrored"] == CHUNK_BYTES
        assert line["bytes_upstream"] == 40_000_000 - CHUNK_BYTES
        assert_recovers(work, files)


@one_day_in(7)
def test_a_mirror_that_has_everything_needs_no_room(work: ProjectHarness) -> None:
    """With no byte to come, a disk that others have filled since stops no plan and no run."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    with small_disk(work.mirror, "80m") as place:
        apply(work, 0, "--wait")
        (place / "of others").write_bytes(bytes(40_000_000))
        assert not work.json("plan")["errored"]
        work.run("run", "job.sft", "--auto-approve")


@one_day_in(7)
def test_what_two_sources_share_needs_room_once(work: ProjectHarness, hub: Hub) -> None:
    """The plan counts it with each, but asks for room once, as apply does."""
    large = noise(40_000_000)
    hub.add("acme/model", {"model.safetensors": large})
    hub.add("acme/fork", {"renamed.safetensors": large, "other.safetensors": noise(2_000_000, 1)})
    write_weights_manifest(
        work, "hf://acme/model", '  fork: {source: "hf://acme/fork", mount_location: m/fork}\n'
    )
    with small_disk(work.mirror, "120m"):
        plan = work.json("plan")
        apply(work, 0)
        assert sum(stored(work.mirror).values()) == 42_000_000

    assert "disk-full" not in [one["code"] for one in plan["diagnostics"]]
    assert [one["bytes_upstream"] for one in plan["weights"]] == [42_000_000, 40_000_000]


@one_day_in(5)
def test_a_read_only_mirror_is_named(work: ProjectHarness) -> None:
    """A file system that can't be written is named with what to do; writable again, it is used."""
    with small_disk(work.mirror, "200m", "ro") as place:
        done = apply(work, 1)
        assert f"{place} is on a read-only file system" in done.stderr
        assert "Make the directory writable, or use another location" in done.stderr
        remount(place, "rw")
        assert_recovers(work)


@one_day_in(5)
def test_whoever_may_only_read_the_mirror_can_plan_what_comes_into_it(work: ProjectHarness) -> None:
    """As for a review of what others then apply: the plan is whole, says so, and may be saved; watching and applying it is the error that it is."""
    with small_disk(work.mirror, "200m", "ro") as place:
        told = f"{place} is on a read-only file system"
        planned = work.run("plan", "--detailed-exitcode", "--out", "plan", code=2)
        (row,) = work.json("plan")["weights"]
        watched = work.run("reconcile", "--once", code=1)
        refused = work.run("apply", "plan", "--auto-approve", code=12)
        remount(place, "rw")
        work.run("apply", "plan", "--auto-approve")

    assert f"warning: cannot use the mirror {place.as_uri()}: {told}" in planned.stderr
    assert row["bytes_upstream"] == sum(map(len, SMALL.values()))
    assert told in watched.stderr
    assert f"error: weights.model: the mirror {place} is on a read-only" in refused.stderr


def test_a_node_without_room_is_found_while_planning(work: ProjectHarness, hub: Hub) -> None:
    """The plan says how much is free on which node and how much is needed, and can't be applied."""
    hub.add("acme/model", {**SMALL, "model.safetensors": noise(6_000_000)})
    write_weights_manifest(work, "hf://acme/model", JOB)
    with small_disk(work.nodes, "20m"):
        done = apply(work, 1)

    assert (
        "error: job.sft: local/local-0 has 4.2 MB free but needs 6.0 MB for weights" in done.stderr
    )
    assert "Free disk space there, use a larger disk for the node cache" in done.stderr
    assert not work.mirror.exists()


@one_day_in(5)
def test_a_node_whose_disk_fills_up_meanwhile(work: ProjectHarness, hub: Hub) -> None:
    """Delivery fails with the node, its directory and what to do; no tree is left; with room the same plan goes on."""
    hub.add("acme/model", {**SMALL, "model.safetensors": noise(6_000_000)})
    write_weights_manifest(work, "hf://acme/model", JOB)
    with small_disk(work.nodes, "28m") as place:
        work.run("plan", "--out", "plan.bin")
        (place / "filler").write_bytes(bytes(8_000_000))
        done = work.run("apply", "plan.bin", code=12)
        status = work.json("status", "job.sft")
        assert "error: job.sft: " in done.stderr
        assert str(place) in done.stderr
        assert "Weights need 6.0 MB and may use" in done.stderr
        assert "Free disk space." in done.stderr
        assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
        assert list(work.nodes.glob("*/cache/trees/*")) == []
        assert list(work.nodes.glob("*/runs/*/started")) == []
        (place / "filler").unlink()
        work.run("apply", "--auto-approve", "--wait")
        assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'
        assert work.actions() == {}
