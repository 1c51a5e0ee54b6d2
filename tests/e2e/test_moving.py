"""Names that change, states that are lost: nothing runs twice, and what was made stays reachable."""

from __future__ import annotations

import shutil

import pytest

from tests.support.projects.project import ProjectHarness

APPLY = ("apply", "--auto-approve", "--wait")
MANIFEST = """\
project: {name: <project>}
jobs:
  <job>:
    weights: ["file:./data.txt"]
    runtime:
      start_commands:
        - "mkdir $BT_CHECKPOINT_DIR/checkpoint-1 && echo w > $BT_CHECKPOINT_DIR/checkpoint-1/w"
        - "echo line >> $BT_PROJECT_CACHE_DIR/lines && cat $BT_PROJECT_CACHE_DIR/lines"
        - "cd $BT_LOAD_CHECKPOINT_DIR && find . -type f"
      cache_config: {enabled: true}
      checkpointing_config: {enabled: true}
"""


def declare(fresh: ProjectHarness, project: str, job: str, more: str = "") -> None:
    text = MANIFEST.replace("<project>", project).replace("<job>", job)
    fresh.write({"trainctl.yaml": text + more, "data.txt": "data"})


def test_a_renamed_job_and_project(fresh: ProjectHarness) -> None:
    """A reviewed change and no run; the next run resumes from the old checkpoints and finds the old cache; all is destroyed."""
    declare(fresh, "demo", "sft")
    fresh.run(*APPLY)
    moved = "moved: [{from: job.sft, to: job.tune}, {from: project.demo, to: project.show}]\n"
    declare(fresh, "show", "tune", moved)
    shown = fresh.run("plan", "--out", "p.bin", "--detailed-exitcode", code=2).stdout
    assert "  ~ job.tune moved from job.sft\n" in shown
    fresh.run("apply", "p.bin")
    digest = fresh.json("show", "p.bin")["plan_digest"]
    again = fresh.run("apply", "--auto-approve", "--expect", digest)
    assert "already applied" in again.stderr
    assert "No changes." in fresh.run("plan").stdout
    (checkpoint,) = fresh.json("checkpoints", "list", "tune")["checkpoints"]
    assert checkpoint["name"] == "checkpoint-1"
    resumed = fresh.run("run", "tune", "--resume", "--auto-approve", "--follow").stdout
    assert "line\nline\n" in resumed
    assert "/checkpoint-1/w\n" in resumed
    assert fresh.json("status", "tune")["number"] == 2
    fresh.run("destroy", "--auto-approve", "--delete-checkpoints")
    assert not [path for path in fresh.nodes.glob("*/caches/*") if path.name != ".team"]
    assert not [path for path in fresh.mirror.glob("references/*/*") if path.is_file()]


@pytest.mark.long
def test_a_lost_state_is_built_again(fresh: ProjectHarness) -> None:
    """From the run on its node and the manifest: then there is nothing to do, and the next run is the second."""
    declare(fresh, "demo", "sft")
    fresh.run(*APPLY)
    run = fresh.json("status", "sft")["run"]
    shutil.rmtree(fresh.directory / ".trainctl")
    fresh.run("import", "job.sft", "--run", run, code=64)
    fresh.run("import", "job.sft", "--run", "aaaaaaa", "--on", "local/local-0", code=1)
    done = fresh.run("import", "job.sft", "--run", run, "--on", "local/local-0")
    assert "Imported job.sft: run 1 completed.\n" in done.stdout
    assert "No changes. The resources match the manifest." in fresh.run("plan").stdout
    assert fresh.json("checkpoints", "list", "sft")["checkpoints"][0]["run"] == run

    shutil.rmtree(fresh.directory / ".trainctl")
    fresh.run("import", "cluster.local")
    declare(fresh, "demo", "sft", f"import: [{{to: job.sft, id: local/local-0/{run}}}]\n")
    assert f"  ~ job.sft imported with run {run}\n" in fresh.run("plan").stdout
    fresh.run(*APPLY)
    assert "No changes." in fresh.run("plan").stdout
    assert fresh.json("status", "sft")["run"] == run
