"""What a checkpoint is, by the files that trainers write into it: its type, base model, step and weights."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Optional

from trainctl.base.ranking import TRAINER_STATE, nothing_to_load
from trainctl.node.checkpoints.safetensors import Header, is_cut, read_header

_STEP = re.compile(r"step=(\d+)|(?:^|[-_]|(?<!\d)\.|step|epoch)(\d+)(?:-\d+)?$")
"""Said outright, or at the end; what stands behind the point of a number is part of a loss, or of a model's name."""
_MOST_JSON_BYTES = 16 * 2**20
_MOST_TEXT = 500
_ZIP = b"PK\x03\x04"
_ZIPPED = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".zip")


def step_in(name: str) -> Optional[int]:
    """The step in a name such as ``checkpoint-120``, ``checkpoint-120-1``, ``global_step120`` or ``epoch=0-step=120.ckpt``."""
    match = _STEP.search(name)
    digits = (match[1] or match[2]) if match else ""
    return int(digits) if 0 < len(digits) <= 18 else None


def step_of(directory: Path, name: str, files: Collection[str]) -> Optional[int]:
    """The step in its name, else the one that its trainer wrote into its state."""
    named = step_in(name)
    if named is not None or TRAINER_STATE not in files:
        return named
    step = _json(directory / TRAINER_STATE).get("global_step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def known_by(directory: Path, name: str, files: Collection[str]) -> Dict[str, Any]:
    """What ranks a checkpoint beside others, before all of it is described."""
    step = step_of(directory, name, files)
    return {"name": name, "step": step, "type": nothing_to_load(files)}


def describe(directory: Path, name: str, files: Iterable[str]) -> Dict[str, Any]:
    """``type`` (lora, full, whisper, other; logs or text where there is nothing to load), ``base_model``, ``lora_rank``, ``step``, and totals of its tensors.

    ``files`` are its paths below the directory. Only headers of weights are read; what can't be read says nothing.
    """
    names = set(files)
    adapter = _json(directory / "adapter_config.json") if "adapter_config.json" in names else {}
    config = _json(directory / "config.json") if "config.json" in names else {}
    headers = [
        header
        for header in (read_header(directory / one) for one in sorted(names) if _weights(one))
        if header is not None
    ]
    rank = adapter.get("r")
    return {
        "type": nothing_to_load(names) or _type(adapter, config, headers),
        "base_model": _base_model(adapter, config),
        "lora_rank": rank if isinstance(rank, int) else None,
        "step": step_of(directory, name, names),
        **_totals(headers),
    }


def looks_whole(directory: Path, files: Iterable[str]) -> bool:
    """Whether no file says of itself that it was cut: safetensors know their length, zip archives end in a table,
    an index names its shards."""
    names = set(files)
    for one in names:
        path = directory / one
        if one.endswith(".safetensors"):
            if is_cut(path):
                return False
        elif one.endswith(_ZIPPED) and _begins_as_zip(path) and not zipfile.is_zipfile(str(path)):
            return False
        elif one.endswith(".safetensors.index.json"):
            shards = _json(path).get("weight_map")
            above = one.rpartition("/")[0]
            wanted = set(shards.values()) if isinstance(shards, dict) else set()
            if any((f"{above}/{shard}" if above else shard) not in names for shard in wanted):
                return False
    return True


def _weights(path: str) -> bool:
    return path.endswith(".safetensors")


def _type(adapter: Dict[str, Any], config: Dict[str, Any], headers: Iterable[Header]) -> str:
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


def _totals(headers: Iterable[Header]) -> Dict[str, Any]:
    dtypes: Dict[str, int] = {}
    tensors = 0
    for header in headers:
        tensors += header.tensors
        for dtype, count in header.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + count
    return {"tensors": tensors, "parameters": sum(dtypes.values()), "dtypes": dtypes}


def _json(path: Path) -> Dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == _ZIP
