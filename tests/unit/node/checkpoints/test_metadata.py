"""What a checkpoint's files say about it, and that invalid ones are not believed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.base.checkpoints.layout import is_loadable, parse_step
from trainctl.node.checkpoints.metadata import (
    MAX_HEADER_BYTES,
    checkpoint_step,
    describe_checkpoint,
    read_header,
    unfinished_reason,
)

A = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
GOOD = {
    "__metadata__": {"format": "pt"},
    "a": A,
    "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
}
INVALID: list[Any] = [
    [],
    None,
    {"a": None},
    {"a": {**A, "shape": [-1]}},
    {"a": {**A, "shape": ["2"]}},
    {"a": {**A, "shape": [2**62, 8]}},
    {"a": {**A, "data_offsets": [0, 13]}},
    {"a": {**A, "data_offsets": [12]}},
    {"__metadata__": 5},
]


def weights(path: Path, header: bytes, length: int | None = None) -> Path:
    """A safetensors file with this header, followed by 16 bytes."""
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + bytes(16))
    return path


def test_a_header_counts_tensors_and_parameters(tmp_path: Path) -> None:
    header = json.dumps(GOOD).encode()
    result = read_header(weights(tmp_path / "x", header))
    assert result == (2, {"BF16": 6, "F32": 1}, 0, 8 + len(header) + 16)


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_of_an_invalid_length_is_not_read(tmp_path: Path, length: int) -> None:
    path = weights(tmp_path / "x", json.dumps(GOOD).encode(), length)
    assert read_header(path) is None


@pytest.mark.parametrize("header", [*map(json.dumps, INVALID), "[" * 200_000], ids=lambda h: h[:50])
def test_an_invalid_header_is_not_believed(tmp_path: Path, header: str) -> None:
    path = weights(tmp_path / "model.safetensors", header.encode())
    assert read_header(path) is None
    assert describe_checkpoint(tmp_path, "x", ["model.safetensors"])["parameters"] == 0


def content(text: str) -> bytes:
    """The bytes of a file of a case."""
    header = json.dumps(GOOD).encode()
    formats = {
        "zip": b"PK\x03\x04" + bytes(2000) + b"PK\x05\x06" + bytes(18),
        "safetensors": struct.pack("<Q", len(header)) + header + bytes(16),
    }
    kind, _, cut = text.partition(" ")
    return formats[kind][: -25 if cut else None] if kind in formats else text.encode()


@pytest.mark.parametrize("case", cases("node/unfinished"))
def test_files_that_a_failed_save_left(tmp_path: Path, case: dict[str, Any]) -> None:
    name, files = case["name"], case["files"]
    place = tmp_path if name in files else tmp_path / name
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content(text))
    for path in case.get("adjacent", ()):
        (tmp_path / path).touch()
    sizes = {path: (place / path).stat().st_size for path in files}

    reason = unfinished_reason(place, name, sizes, case.get("siblings", []), case.get("rank", 0))
    assert reason == case.get("reason")


def test_a_rank_is_the_largest_of_the_tensors_and_consolidated_parts_count_once(
    tmp_path: Path,
) -> None:
    tensor = {"dtype": "BF16", "shape": [64, 1], "data_offsets": [0, 128]}
    header = json.dumps({"v_proj.lora_A.weight": tensor}).encode()
    (tmp_path / "sharded").mkdir()
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    names = ["adapter_model.safetensors", "sharded/shard-00001-model-00001-of-00001.safetensors"]
    for name in names:
        weights(tmp_path / name, header)
    checkpoint = describe_checkpoint(tmp_path, "x", ["adapter_config.json", *names])

    assert (checkpoint["lora_rank"], checkpoint["parameters"]) == (64, 64)


@pytest.mark.parametrize("case", cases("node/checkpoint_types"))
def test_the_type_base_model_and_step_of_a_checkpoint(tmp_path: Path, case: dict[str, Any]) -> None:
    for name, value in case["files"].items():
        (tmp_path / name).write_text(json.dumps(value))

    checkpoint = describe_checkpoint(tmp_path, "final", [*case["files"], "pytorch_model.bin"])

    for key in ("type", "base_model", "lora_rank", "step"):
        assert checkpoint[key] == case.get(key)


@pytest.mark.parametrize("case", cases("node/checkpoint_steps"))
def test_the_step_in_a_name(case: dict[str, Any]) -> None:
    assert {name: parse_step(name) for name in case} == case


@pytest.mark.parametrize("case", cases("node/checkpoint_layouts"))
def test_a_directory_without_loadable_files_has_no_step(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    """All its files are known as logs or text; any other file may be one that a trainer resumes from."""
    assert is_loadable(case["files"]) == case["loadable"]
    if not case["loadable"]:
        assert checkpoint_step(tmp_path, case["name"], case["files"]) is None
