"""The Trainer of transformers reports its progress by itself: no line of the job knows of trainctl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.project import project
from tests.support.pytorch import pytorch

pytestmark = pytest.mark.long

TRAIN = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(16)]
arguments = TrainingArguments(
    output_dir="out", max_steps=30, per_device_train_batch_size=4, logging_steps=5,
    save_strategy="no", use_cpu=True, disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local}}
jobs:
  train:
    code: ./src
    runtime: {venv: VENV, start_commands: [python train.py]}
"""


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    """``status --watch`` ends with the last step and loss, and ``metrics --plot`` draws the loss."""
    with project(tmp_path) as work:
        manifest = MANIFEST.replace("VENV", str(pytorch("transformers", "peft")))
        work.write({"trainctl.yaml": manifest, "src/train.py": TRAIN})
        work.run("apply", "--auto-approve")
        lines = work.events("status", "train", "--watch", "--format", "json")

        progress = [line["progress"] for line in lines if line["progress"]]
        assert (progress[-1]["step"], progress[-1]["total"]) == (30, 30)
        assert 0 < progress[-1]["loss"] < 10
        assert lines[-1]["status"] == "TRAINING_JOB_COMPLETED"
        plot = work.run("metrics", "train", "--plot").stdout
        assert "step 30/30 [####################] 100 %, loss" in plot
