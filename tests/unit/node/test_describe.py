"""What a checkpoint's files say it is, and how little of them is believed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from trainctl.base.checkpoints.ranking import is_loadable
from trainctl.node.checkpoints.metadata import (
    MAX_HEADER_BYTES,
    checkpoint_step,
    describe_checkpoint,
    parse_step,
    read_header,
)


def weights(path: Path, document: Any, data: int = 0, length: int | None = None) -> Path:
    """A safetensors file with this header, followed by so many bytes."""
    header = json.dumps(document).encode()
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + bytes(data))
    return path


A = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
GOOD = {
    "__metadata__": {"format": "pt"},
    "a": A,
    "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
}


def test_a_header_counts_tensors_and_parameters(tmp_path: Path) -> None:
    """By type; a scalar is one."""
    assert read_header(weights(tmp_path / "x", GOOD, 16)) == (2, {"BF16": 6, "F32": 1})


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_hostile_length_is_refused_before_anything_is_read(tmp_path: Path, length: int) -> None:
    """No header of that length is read, or memory taken for it."""
    assert read_header(weights(tmp_path / "x", GOOD, length=length)) is None


@pytest.mark.parametrize(
    "document",
    [
        [], "text", None, {"a": None}, {"a": {}}, {"a": {**A, "shape": [-1]}}, {"a": {**A, "shape": ["2"]}},
        {"a": {**A, "shape": [2**62, 8]}}, {"a": {**A, "data_offsets": [0, 13]}}, {"a": {**A, "data_offsets": [12]}},
        {"__metadata__": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_a_header_that_cannot_be_is_not_believed(tmp_path: Path, document: Any) -> None:
    """Nor does it stop anything."""
    path = weights(tmp_path / "model.safetensors", document, 16)
    assert read_header(path) is None
    assert describe_checkpoint(tmp_path, "x", ["model.safetensors"])["parameters"] == 0


def test_deep_json_is_not_believed(tmp_path: Path) -> None:
    """A header of brackets only."""
    text = b"[" * 200_000
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(text)) + text)
    assert read_header(tmp_path / "x") is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, ("other", None, None)),
        ({"config.json": {"architectures": ["Qwen3ForCausalLM"], "_name_or_path": "Qwen/Qwen3-0.6B"}},
         ("full", "Qwen/Qwen3-0.6B", None)),
        ({"config.json": {"architectures": ["LlamaForCausalLM"]}}, ("full", "LlamaForCausalLM", None)),
        ({"config.json": {"model_type": "whisper"}}, ("whisper", None, None)),
        ({"adapter_config.json": {"base_model_name_or_path": "a/b", "r": 16}, "config.json": {}}, ("lora", "a/b", 16)),
        ({"adapter_config.json": {"r": "16", "base_model_name_or_path": 5}}, ("lora", None, None)),
        ({"config.json": ["no"]}, ("other", None, None)),
    ],
    ids=repr,
)  # fmt: skip
def test_the_type_and_base_model_of_a_checkpoint(
    tmp_path: Path, files: dict[str, Any], said: Any
) -> None:
    """As trainers write them beside the weights; nonsense says nothing."""
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    found = describe_checkpoint(tmp_path, "final", [*files, "pytorch_model.bin"])
    assert (found["type"], found["base_model"], found["lora_rank"]) == said


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-120", 120), ("checkpoint-120-3", 120), ("global_step120", 120), ("step_7", 7), ("epoch-3", 3),
        ("epoch=0-step=10.ckpt", 10), ("llama--loss=0.52-step=10-consumed_samples=80.0-last", 10), ("checkpoint.7", 7),
        ("llama-3.1", None), ("glm-4.6-lora-64-128", None), ("qwen/v0-20250101/checkpoint-100", 100), ("iter_0000100", 100),
        ("epoch_1_step_500", 500), ("epoch=3-val_loss=0.52", None), ("120", 120), ("final", None), ("qwen3", None), (".", None), ("checkpoint-" + "9" * 40, None),
    ],
)  # fmt: skip
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    """As trainers number their checkpoints."""
    assert parse_step(name) == step


LOG = "events.out.tfevents.1732270272.gpu-1.4711.0"
LAYOUTS = {
    "transformers": ("checkpoint-500", True, ["config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"]),
    "transformers, logs": ("Nov22_10-11-12_gpu-1", False, [LOG, "1732270272.9/" + LOG]),
    "lightning": ("lightning_logs", True, ["version_0/" + LOG, "version_0/hparams.yaml", "version_0/checkpoints/epoch=0-step=10.ckpt"]),
    "lightning, sharded": ("epoch=0-step=10.ckpt", True, ["meta.pt", ".metadata", "__0_0.distcp"]),
    "lightning, logs": ("version_0", False, [LOG, "hparams.yaml"]),
    "lightning, CSVLogger": ("version_1", False, ["metrics.csv", "hparams.yaml"]),
    "nemo": ("llama--step=10-last", True, ["weights/common.pt", "weights/metadata.json", "context/model.yaml"]),
    "torchtune": ("epoch_0", True, ["adapter_config.json", "adapter_model.safetensors"]),
    "torchtune, recipe": ("recipe_state", True, ["recipe_state.pt"]),
    "torchtune, logs": ("logs", False, ["log_1732270272.txt"]),
    "accelerate": ("step_100", True, ["model.safetensors", "optimizer.bin", "random_states_0.pkl"]),
    "deepspeed": ("global_step100", True, ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"]),
    "deepspeed, loose": (".", True, ["latest", "zero_to_fp32.py"]),
    "torch.save": (".", True, ["model_100.pt", "train.log"]),
    "wandb": ("run-20241122_101112-7f4qg7l2", False, ["run-7f4qg7l2.wandb", "files/config.yaml", "files/output.log"]),
    "orbax": ("1000", True, ["_METADATA", "manifest.ocdbt", "d/0a1b"]),
    "evaluation": ("eval-100", False, ["results.json", "samples.jsonl", "README.md"]),
    "a trainer's state": ("last", True, ["trainer_state.json"]),
    "unknown": ("step-1", True, ["state.json", "model"]),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_holds_nothing_to_load_has_no_step(tmp_path: Path, layout: str) -> None:
    """All its files are known for logs or text; any other file may be what a trainer resumes from."""
    name, loadable, files = LAYOUTS[layout]
    assert is_loadable(files) == loadable
    if not loadable:
        assert checkpoint_step(tmp_path, name, files) is None


def test_the_step_of_a_checkpoint_whose_name_has_none(tmp_path: Path) -> None:
    """The trainer's state says it."""
    (tmp_path / "trainer_state.json").write_text('{"global_step": 42}')
    assert describe_checkpoint(tmp_path, "last", ["trainer_state.json"])["step"] == 42
    (tmp_path / "trainer_state.json").write_text('{"global_step": true}')
    assert describe_checkpoint(tmp_path, "last", ["trainer_state.json"])["step"] is None
