"""Full and read-only disks: the error, the exit code, and recovery; tests/faults/test_store_disks.py has the mirror's."""

from __future__ import annotations

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import (
    JOB,
    SMALL,
    apply,
    assert_nothing_half_done,
    assert_recovers,
    remount,
    small_disk,
    write_weights_manifest,
)
from tests.support.servers.hub import Hub
from tests.support.storage.weights_data import noise


def test_a_full_mirror_is_an_error_before_anything_moves(work: ProjectHarness, hub: Hub) -> None:
    """No body is requested. With space the same command recovers; a complete mirror needs none."""
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
        remount(place, "size=100m")
        assert_recovers(work)
        (place / "of others").write_bytes(bytes(60_000_000))
        assert not work.json("plan")["errored"]


def test_a_node_whose_disk_fills_up(work: ProjectHarness, hub: Hub) -> None:
    """A plan reports it; after a plan delivery fails, and leaves no tree; with space the next apply goes through."""
    hub.add("acme/model", {**SMALL, "model.safetensors": noise(6_000_000)})
    write_weights_manifest(work, "hf://acme/model", JOB)
    with small_disk(work.nodes, "28m") as place:
        work.run("plan", "--out", "plan.bin")
        (place / "filler").write_bytes(bytes(8_000_000))
        planned = work.run("plan", code=1).stderr
        stderr = work.run("apply", "plan.bin", code=12).stderr
        status = work.json("status", "job.sft")
        assert "error: job.sft: local/local-0 has " in planned
        assert " MB free but needs 6.0 MB for weights" in planned
        assert "Free disk space there, use a larger disk for the node cache" in planned
        assert "error: job.sft: " in stderr
        assert str(place) in stderr
        assert "Weights need 6.0 MB and may use" in stderr
        assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
        assert list(work.nodes.glob("*/cache/trees/*")) == []
        assert list(work.nodes.glob("*/runs/*/started")) == []
        (place / "filler").unlink()
        work.run("apply", "--auto-approve", "--wait")
        assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'
        assert work.actions() == {}
