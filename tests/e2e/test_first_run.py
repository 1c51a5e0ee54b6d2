"""The whole way on one machine: plan, apply, look, apply again, change, destroy."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.project import ProjectHarness, processes


def test_one_apply_trains_the_job_and_keeps_its_checkpoint(
    demo: ProjectHarness, runs_done: Path
) -> None:
    """apply --wait mirrors, delivers, mounts and runs; the log and the checkpoint can be had afterwards. The mount is the job's alone,
    scratch is empty. destroy leaves no process, no node directory, an empty state; mirror and checkpoints are kept and are named.
    """
    done = demo.run("apply", "--auto-approve", "--wait")
    status = demo.json("status", "job.sft")
    log = demo.run("logs", "job.sft").stdout.splitlines()
    place = demo.run(
        "checkpoints", "download", "job.sft", "--output-dir", str(demo.directory / "out")
    ).stdout.strip()
    scratch = list(demo.nodes.glob("*/runs/*/scratch/*"))

    assert "Apply complete. 5 added, 0 changed, 0 destroyed." in done.stdout
    assert (status["status"], status["ranks"][0]["exit_code"]) == ("TRAINING_JOB_COMPLETED", 0)
    assert (Path(status["ranks"][0]["workdir"]) / "train.py").exists()
    assert f"files         {status['ranks'][0]['workdir']}\n" in demo.run("status", "sft").stdout
    assert log == ["lr 1e-3", "weights ['config.json', 'model.bin']", "done"]
    assert (Path(place) / "model.bin").read_bytes() == (bytes(range(256)) * 1000)[::-1]
    assert runs_done.read_text().split() == [status["run"]]
    assert [checkpoint["complete"] for checkpoint in status["checkpoints"]] == [True]
    assert demo.json("plan", "--replace", "job.sft")["deliveries"][0]["mount"] == "namespace"
    assert not Path("/app/models/tiny").exists()
    assert scratch == []

    destroyed = demo.run("destroy", "--auto-approve")
    assert demo.run("state", "list").stdout == ""
    assert list(demo.nodes.iterdir()) == []
    assert processes(str(demo.directory.parent)) == []
    assert f"mirror       {demo.mirror}" in destroyed.stdout
    assert "checkpoints/demo/sft/1-" in destroyed.stdout
    assert list((demo.mirror / "references").rglob("*.json")) == []


def test_a_second_apply_does_nothing_and_a_changed_learning_rate_runs_from_warm_caches(
    demo: ProjectHarness, runs_done: Path
) -> None:
    """Nothing is planned, nothing runs, and the state's serial stays. Then the plan shows the changed command and nothing else, and not a
    byte moves for it.
    """
    demo.run("apply", "--auto-approve", "--wait")
    before = demo.json("plan")
    demo.run("apply", "--auto-approve", "--wait")
    after = demo.json("plan")

    assert (before["serial"], before["plan_digest"]) == (after["serial"], after["plan_digest"])
    assert demo.actions() == {}
    assert len(runs_done.read_text().split()) == 1
    demo.run("plan", "--detailed-exitcode", code=0)

    plan = demo.json("plan", "--var", "lr=1e-2")
    change = next(row["change"] for row in plan["resource_changes"] if row["address"] == "job.sft")
    demo.run("plan", "--detailed-exitcode", "--var", "lr=1e-2", code=2)
    demo.run("apply", "--auto-approve", "--wait", "--var", "lr=1e-2")

    assert change["actions"] == ["delete", "create"]
    assert change["replace_paths"] == [["runtime", "start_commands", 0]]
    assert [
        row["address"] for row in plan["resource_changes"] if row["change"]["actions"] != ["no-op"]
    ] == ["job.sft"]
    tiers = plan["deliveries"][0]["bytes_by_tier"]
    assert (tiers["node"], tiers["mirror"] + tiers["upstream"] + tiers["cluster"]) == (256018, 0)
    assert demo.run("logs", "sft").stdout.startswith("lr 1e-2\n")
    assert len(runs_done.read_text().split()) == 2
