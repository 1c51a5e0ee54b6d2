"""Saved and reviewed plans: bound to their state, applied once, resumed by a pipeline that runs again."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.manifest_files import WEIGHTS, job, write_manifest
from tests.support.projects.project import ProjectHarness


def test_a_plan_is_applied_to_its_own_state_once(fresh: ProjectHarness) -> None:
    """Made for a new state at a URL, it is refused for any other URL or lineage; applied again, it starts nothing."""
    place, other = (str(fresh.directory.parent / name) for name in ("mine", "other"))
    write_manifest(fresh, {"a": job("echo $BT_TRAINING_JOB_ID >> ../runs")})
    fresh.run("--state", f"file://{place}", "plan", "--out", "p.bin")
    refused = fresh.run("--state", f"file://{other}", "apply", "p.bin", code=11)
    assert f"for the state file://{place}, not file://{other}" in refused.stderr
    assert not Path(other).exists()
    fresh.run("apply", "p.bin", "--wait")
    over = fresh.run("apply", "p.bin", "--wait")
    assert "The plan is already applied." in over.stderr
    assert "0 added, 0 changed, 0 destroyed" in over.stdout
    fresh.variables["TRAINCTL_STATE"] = f"file://{place}"
    status = fresh.json("status", "a")
    assert (status["number"], status["status"]) == (1, "TRAINING_JOB_COMPLETED")
    assert not (fresh.directory / ".trainctl").exists()


def test_an_approved_plan_is_resumed(fresh: ProjectHarness) -> None:
    """By its digest or its file, also after reconcile did the rest of it; with its approval and nothing else."""
    clusters = {name: {"provider": "local"} for name in ("x", "y")}
    jobs = {
        "a": job("true", cluster="x", weights=["tiny"]),
        "b": job("echo 1", cluster="y", depends_on=["job.a"]),
    }
    write_manifest(fresh, jobs, weights=WEIGHTS, clusters=clusters)
    digest = fresh.json("plan", "--out", "p.bin")["plan_digest"]
    expect = ("apply", "--auto-approve", "--expect", digest)
    fresh.run("apply", "p.bin", code=12)
    fresh.run("logs", "a", "--follow")
    write_manifest(fresh, {**jobs, "a": job("false", cluster="x")}, clusters=clusters)
    fresh.run(*expect, code=11)
    write_manifest(fresh, jobs, weights=WEIGHTS, clusters=clusters)
    resumed = fresh.run(*expect)
    assert "Resuming the plan: 1 change left." in resumed.stderr
    for command in (expect, ("apply", "p.bin")):
        assert "already applied" in fresh.run(*command, "--wait").stderr

    write_manifest(
        fresh,
        {
            **jobs,
            "c": job("true", cluster="x"),
            "d": job("true", cluster="y", depends_on=["job.c"]),
        },
        weights=WEIGHTS,
        clusters=clusters,
    )
    fresh.run(*expect, code=11)
    digest = fresh.json("plan", "--out", "q.bin")["plan_digest"]
    fresh.run("apply", "q.bin", code=12)
    fresh.run("logs", "c", "--follow")
    fresh.run("reconcile", "--once")
    for command in (("apply", "q.bin"), ("apply", "--auto-approve", "--expect", digest)):
        assert "already applied" in fresh.run(*command, "--wait").stderr
    assert {row["plan"] for row in fresh.json("history", "job.d")["entries"] if row["plan"]} == {
        digest
    }
