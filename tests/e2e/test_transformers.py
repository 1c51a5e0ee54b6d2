"""The Trainer of transformers reports its progress by itself: no line of the job knows of trainctl."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.projects.project import project
from tests.support.pytorch import pytorch

pytestmark = pytest.mark.long

TRAIN = """\
import json, os
import sitecustomize, torch
assert sitecustomize.OWN == 1
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(16)]
arguments = TrainingArguments(
    output_dir="out", max_steps=30, per_device_train_batch_size=4, logging_steps=1,
    save_strategy="no", eval_strategy="steps", eval_steps=10, use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:4])
trainer.train()
with open(os.environ["LOGGED"], "w") as file:
    json.dump(trainer.state.log_history, file)
"""

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local}}
jobs:
  train:
    code: ./src
    runtime:
      venv: VENV
      start_commands: [python train.py]
      environment_variables: {LOGGED: LOG, PYTHONPATH: OWN}
"""


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    """``status --watch`` ends with the last step and loss, and ``metrics --plot`` draws the loss.

    All that it logged outlives its node, with its step. The job's own ``sitecustomize`` is loaded.
    """
    with project(tmp_path) as work:
        manifest = MANIFEST.replace("VENV", str(pytorch("transformers", "peft")))
        log, own = work.directory / "logged.json", work.directory / "own"
        manifest = manifest.replace("LOG}", f"{log}}}").replace("LOG,", f"{log},")
        manifest = manifest.replace("OWN", str(own))
        work.write(
            {
                "trainctl.yaml": manifest,
                "src/train.py": TRAIN,
                "own/sitecustomize.py": "OWN = 1\n",
            }
        )
        work.run("apply", "--auto-approve")
        lines = work.events("status", "train", "--watch", "--format", "json")

        progress = [line["progress"] for line in lines if line["progress"]]
        assert (progress[-1]["step"], progress[-1]["total"]) == (30, 30)
        assert 0 < progress[-1]["loss"] < 10
        assert lines[-1]["status"] == "TRAINING_JOB_COMPLETED"
        plot = work.run("metrics", "train", "--plot").stdout
        assert "step 30/30 [####################] 100 %, loss" in plot

        shutil.rmtree(work.nodes)
        (run,) = work.json("results", "train")["runs"]
        reported = {
            key: list(zip(points["steps"], points["values"], strict=True))
            for key, points in run["points"].items()
        }
        logged: dict[str, list[tuple[int, float]]] = {}
        for row in json.loads(log.read_text()):
            for key in row.keys() - {"step", "total_flos"}:
                logged.setdefault(key, []).append((row["step"], row[key]))
        assert {key: reported[key] for key in logged} == logged
        assert len(logged["loss"]) == 30
        assert [step for step, _ in logged["eval_loss"]] == [10, 20, 30]
