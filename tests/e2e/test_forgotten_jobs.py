"""Jobs that left the manifest after their runs had ended: what they did can be looked at, had again and gone on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

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
SWEEP = """\
  sweep:
    matrix: {lr: [LR]}
    runtime: {start_commands: ["echo lr ${{ matrix.lr }}"]}
"""


def declare(project: ProjectHarness, jobs: str, checkpoints: str = "") -> None:
    """Write the manifest."""
    text = f"project: {{name: demo}}\n{checkpoints}jobs:\n{STAY}{jobs}"
    project.write({"trainctl.yaml": text, "src/note.txt": "as it was"})


@pytest.fixture(params=["", "checkpoints: {url: 'file://STORE'}\n"], ids=["node", "store"])
def forgotten(fresh: ProjectHarness, tmp_path: Path, request: Any) -> ProjectHarness:
    """A project whose job ``sft`` has run once, and was taken out of the manifest."""
    store = request.param.replace("STORE", str(tmp_path / "store"))
    declare(fresh, SFT, store)
    fresh.run(*APPLY)
    declare(fresh, "", store)
    fresh.run(*APPLY)
    assert fresh.json("state", "list")["addresses"].count("job.sft") == 0
    return fresh


@one_day_in(3)
def test_what_it_did_can_be_looked_at_and_had(forgotten: ProjectHarness) -> None:
    """Its log, how it stands, its checkpoints and its code; but no plan speaks of it, nor does any list."""
    status = forgotten.json("status", "sft")
    found = forgotten.json("checkpoints", "list", "sft")["checkpoints"]
    place = forgotten.run("checkpoints", "download", "sft").stdout.strip()
    code = forgotten.run("download", "sft", "--output-dir", "code").stdout.strip()

    assert (status["number"], status["status"]) == (1, "TRAINING_JOB_COMPLETED")
    assert forgotten.run("logs", "sft").stdout == "saved\n"
    assert [(one["name"], one["state"]) for one in found] == [("checkpoint-1", "complete")]
    assert (forgotten.directory / place / "model.bin").read_text() == "kept\n"
    assert (forgotten.directory / code / "note.txt").read_text() == "as it was"
    assert [one["address"] for one in forgotten.json("status")["jobs"]] == ["job.stay"]
    assert forgotten.actions() == {}


@one_day_in(5)
def test_put_back_it_counts_on_and_resumes(forgotten: ProjectHarness) -> None:
    """Its next run is its second, and begins with the checkpoint of its first."""
    text = (forgotten.directory / "trainctl.yaml").read_text()
    forgotten.write({"trainctl.yaml": text + SFT})
    forgotten.run("run", "sft", "--resume", "--auto-approve", "--follow")

    assert forgotten.json("status", "sft")["number"] == 2
    said = forgotten.run("logs", "sft").stdout
    assert "sft/rank-0/checkpoint-1/model.bin" in said
    assert forgotten.run("logs", "sft", "--run", "1").stdout == "saved\n"


@one_day_in(7)
def test_a_run_of_it_can_be_repeated(forgotten: ProjectHarness) -> None:
    """As it was then, whatever the manifest has; and the next apply forgets it again."""
    forgotten.run("run", "sft", "--run", "1", "--auto-approve", "--follow")

    assert forgotten.json("status", "sft")["number"] == 2
    assert forgotten.actions() == {"job.sft": ["forget"]}


@one_day_in(7)
def test_one_that_left_a_matrix(fresh: ProjectHarness) -> None:
    """It is found by its values, while the name means what is left."""
    declare(fresh, SWEEP.replace("LR", "1, 2, 3"))
    fresh.run(*APPLY)
    declare(fresh, SWEEP.replace("LR", "2"))
    fresh.run(*APPLY)

    assert fresh.run("logs", "sweep[lr=3]").stdout == "lr 3\n"
    assert fresh.run("logs", "sweep").stdout == "lr 2\n"
    declare(fresh, "")
    fresh.run(*APPLY)
    several = fresh.run("logs", "sweep", code=64).stderr
    assert "job.sweep has 3 jobs" in several
    assert "sweep[lr=3]" in fresh.run("logs", "sweep[lr=4]", code=64).stderr.replace('"', "")


@one_day_in(7)
def test_with_its_cluster_it_is_gone(forgotten: ProjectHarness) -> None:
    """Nothing is left that could be looked at."""
    forgotten.run("destroy", "--auto-approve")

    assert "not in the state" in forgotten.run("logs", "sft", code=64).stderr
