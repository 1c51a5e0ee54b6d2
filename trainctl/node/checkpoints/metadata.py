"""Describe checkpoints by trainers' files: type, base model, step, tensors."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Optional, Tuple

from trainctl.base.checkpoints.ranking import TRAINER_STATE, is_loadable

_STEP = re.compile(
    r"step=(\d+)|^(\d+)$|(?:checkpoint|ckpt|step|epoch|iter|iteration)[-_.]?(\d+)(?:-\d+)?$"
)
"""After ``step=``, or after a word of trainers at the end. Other digits are a size, a loss or part of a model's name."""
_MOST_JSON_BYTES = 16 * 2**20
_MOST_TEXT = 500

MAX_HEADER_BYTES = 10 * 2**20
"""Largest header of a safetensors file that is read: a hostile file may claim any size."""

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

TensorTotals = Tuple[int, Dict[str, int]]
"""Number of tensors of a safetensors file, and its parameters by data type."""


def parse_step(name: str) -> Optional[int]:
    """Parse the step in a name.

    ``v0/checkpoint-120``, ``checkpoint-120-1``, ``global_step120``, ``epoch=0-step=120.ckpt``.
    """
    match = _STEP.search(name.rpartition("/")[2])
    digits = match[match.lastindex or 0] if match else ""
    return int(digits) if 0 < len(digits) <= 18 else None


def checkpoint_step(directory: Path, name: str, files: Collection[str]) -> Optional[int]:
    """Step by name, else by trainer state; None if it can't be resumed from."""
    if not is_loadable(files):
        return None
    step = parse_step(name)
    if step is not None or TRAINER_STATE not in files:
        return step
    state_step = _json(directory / TRAINER_STATE).get("global_step")
    is_number = isinstance(state_step, int) and not isinstance(state_step, bool)
    return state_step if is_number else None


def describe_checkpoint(directory: Path, name: str, files: Iterable[str]) -> Dict[str, Any]:
    """``type``, ``base_model``, ``lora_rank``, ``step`` and tensor totals.

    ``type`` is lora, full, whisper or other.

    ``files`` are paths below the directory. Reads only headers of weights and ignores unreadable files.
    """
    names = set(files)
    adapter = _json(directory / "adapter_config.json") if "adapter_config.json" in names else {}
    config = _json(directory / "config.json") if "config.json" in names else {}
    weights = [name for name in sorted(names) if name.endswith(".safetensors")]
    headers = [
        header
        for header in (read_header(directory / name) for name in weights)
        if header is not None
    ]
    rank = adapter.get("r")
    return {
        "type": _type(adapter, config, headers) if is_loadable(names) else "other",
        "base_model": _base_model(adapter, config),
        "lora_rank": rank if isinstance(rank, int) else None,
        "step": checkpoint_step(directory, name, names),
        **_totals(headers),
    }


def _type(adapter: Dict[str, Any], config: Dict[str, Any], headers: Iterable[TensorTotals]) -> str:
    if adapter:
        return "lora"
    architectures = config.get("architectures")
    words = [config.get("model_type"), *(architectures if isinstance(architectures, list) else [])]
    if any("whisper" in str(word).lower() for word in words if word):
        return "whisper"
    return "full" if config or list(headers) else "other"


def _base_model(adapter: Dict[str, Any], config: Dict[str, Any]) -> Optional[str]:
    for value in (adapter.get("base_model_name_or_path"), config.get("_name_or_path")):
        if isinstance(value, str) and value:
            return value[:_MOST_TEXT]
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0][:_MOST_TEXT]
    return None


def _totals(headers: Iterable[TensorTotals]) -> Dict[str, Any]:
    dtypes: Counter[str] = Counter()
    tensors = 0
    for count, header in headers:
        tensors += count
        dtypes.update(header)
    return {"tensors": tensors, "parameters": sum(dtypes.values()), "dtypes": dict(dtypes)}


def read_header(path: Path) -> Optional[TensorTotals]:
    """Read a safetensors file's tensor totals; None if it has no valid header.

    Format: 8 bytes of length, little endian, followed by that many bytes of JSON.
    """
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 2 <= length <= MAX_HEADER_BYTES:
                return None
            return _parse(json.loads(stream.read(length)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error, RecursionError):
        return None


def _parse(document: Dict[str, Any]) -> TensorTotals:
    if not isinstance(document.pop("__metadata__", {}), dict):
        raise TypeError("metadata is not an object")
    dtypes: Dict[str, int] = {}
    for tensor in document.values():
        begin, stop = tensor["data_offsets"]
        count = math.prod(_natural_number(size) for size in tensor["shape"])
        bits = _BITS.get(tensor["dtype"], 8 * (stop - begin) // (count or 1))
        if stop - begin != count * bits // 8:
            raise ValueError("size of a tensor does not match its shape")
        dtypes[str(tensor["dtype"])] = dtypes.get(str(tensor["dtype"]), 0) + count
    return len(document), dtypes


def _natural_number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("not a size")
    return value


def _json(path: Path) -> Dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
