"""Jobs that left the manifest after their runs had ended: what they did can be looked at, had again and gone on from."""

from __future__ import annotations

from tests.support.projects.project import ProjectHarness

APPLY = ("apply", "--auto-approve", "--wait")
STAY = "  stay: {runtime: {start_commands: ['true']}}\n"
SFT = """\
  sft:
    code: ./src
    runtime:
      start_commands:
        - "find $BT_LOAD_CHECKPOINT_DIR/ -type f"
        - "mkdir $BT_CHECKPOINT_DIR/checkpoint-1 && echo kept > $BT_CHECKPOINT_DIR/checkpoint-1/model.bin && echo saved"
      checkpointing_config: {enabled: true}
"""


def declare(project: ProjectHarness, jobs: str) -> None:
    text = f"project: {{name: demo}}\njobs:\n{STAY}{jobs}"
    project.write({"trainctl.yaml": text, "src/note.txt": "as it was"})


def test_a_job_that_left_the_manifest(fresh: ProjectHarness) -> None:
    """Log, status, checkpoints and code are there, but not in a plan or list; put back, it resumes as its second run."""
    declare(fresh, SFT)
    fresh.run(*APPLY)
    declare(fresh, "")
    fresh.run(*APPLY)
    assert fresh.json("state", "list")["addresses"].count("job.sft") == 0
    status = fresh.json("status", "sft")
    checkpoints = fresh.json("checkpoints", "list", "sft")["checkpoints"]
    place = fresh.run("checkpoints", "download", "sft").stdout.strip()
    code = fresh.run("download", "sft", "--output-dir", "code").stdout.strip()

    assert (status["number"], status["status"]) == (1, "TRAINING_JOB_COMPLETED")
    assert fresh.run("logs", "sft").stdout == "saved\n"
    assert [(row["name"], row["state"]) for row in checkpoints] == [("checkpoint-1", "complete")]
    assert (fresh.directory / place / "model.bin").read_text() == "kept\n"
    assert (fresh.directory / code / "note.txt").read_text() == "as it was"
    assert [job["address"] for job in fresh.json("status")["jobs"]] == ["job.stay"]
    assert fresh.actions() == {}

    declare(fresh, SFT)
    fresh.run("run", "sft", "--resume", "--auto-approve", "--follow")
    assert fresh.json("status", "sft")["number"] == 2
    assert "sft/rank-0/checkpoint-1/model.bin" in fresh.run("logs", "sft").stdout
    assert fresh.run("logs", "sft", "--run", "1").stdout == "saved\n"
