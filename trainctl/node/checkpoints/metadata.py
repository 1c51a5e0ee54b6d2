"""What a checkpoint is, by the files that trainers write into it: its type, base model, step and weights."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Optional, Tuple

from trainctl.base.checkpoints.ranking import TRAINER_STATE, is_loadable

_STEP = re.compile(r"step=(\d+)|(?:^|[-_]|(?<!\d)\.|step|epoch)(\d+)(?:-\d+)?$")
"""Said outright, or at the end; what stands behind the point of a number is part of a loss, or of a model's name."""
_MOST_JSON_BYTES = 16 * 2**20
_MOST_TEXT = 500

MAX_HEADER_BYTES = 10 * 2**20
"""A longer header of a safetensors file is refused: a hostile file may claim any number."""

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

TensorTotals = Tuple[int, Dict[str, int]]
"""A safetensors file's number of tensors, and its parameters by type."""


def parse_step(name: str) -> Optional[int]:
    """The step in a name such as ``checkpoint-120``, ``checkpoint-120-1``, ``global_step120`` or ``epoch=0-step=120.ckpt``."""
    match = _STEP.search(name)
    digits = (match[1] or match[2]) if match else ""
    return int(digits) if 0 < len(digits) <= 18 else None


def checkpoint_step(directory: Path, name: str, files: Collection[str]) -> Optional[int]:
    """The step in its name, else the one that its trainer wrote into its state; None if it holds nothing to resume from."""
    if not is_loadable(files):
        return None
    named = parse_step(name)
    if named is not None or TRAINER_STATE not in files:
        return named
    step = _json(directory / TRAINER_STATE).get("global_step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def describe_checkpoint(directory: Path, name: str, files: Iterable[str]) -> Dict[str, Any]:
    """``type`` (lora, full, whisper, other), ``base_model``, ``lora_rank``, ``step``, and totals of its tensors.

    ``files`` are its paths below the directory. Only headers of weights are read; what can't be read says nothing.
    """
    names = set(files)
    adapter = _json(directory / "adapter_config.json") if "adapter_config.json" in names else {}
    config = _json(directory / "config.json") if "config.json" in names else {}
    headers = [
        header
        for header in (
            read_header(directory / one) for one in sorted(names) if one.endswith(".safetensors")
        )
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
    """Tensors and parameters by type of a safetensors file; None if it has no valid header.

    The file begins with 8 bytes of length, little endian, then so many bytes of JSON.
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
            raise ValueError("a tensor is not as long as its shape says")
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
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
