"""Describe checkpoints by trainers' files: type, base model, step, tensors, whether they are finished, and pointer files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections import Counter
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
)

from trainctl.base.checkpoints.layout import (
    POINTER_NAME,
    TRAINER_STATE,
    PointerFile,
    find_pointer,
    is_loadable,
    is_temporary_checkpoint,
    parse_step,
)
from trainctl.base.filesystem.files import list_names
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily

if TYPE_CHECKING:
    from trainctl.node.checkpoints.monitor import SavedCheckpoint

_SENTINEL = "checkpoint-is-incomplete.txt"
_TRAINING_ARGS = "training_args.bin"
_SHARD = compile_lazily(r"(.*)-\d+-of-(\d+)(\.safetensors|\.bin)")
_ZIP_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".zip", ".npz")
_ZIP_START, _ZIP_END, _ZIP_END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 1024
_MOST_JSON_BYTES = 16 * 2**20
_MOST_TEXT = 500

MAX_HEADER_BYTES = 10 * 2**20
"""Largest header of a safetensors file that is read: a hostile file may claim any size."""

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

_LORA_A = compile_lazily(r"lora_(?:embedding_)?A\b")


class TensorTotals(NamedTuple):
    """Tensors of a safetensors file, parameters by data type, largest rank of LoRA, and the size of the file."""

    tensors: int
    dtypes: Dict[str, int]
    lora_rank: int
    size: int


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
    headers = [
        header
        for header in (read_header(directory / name) for name in _weights(names))
        if header is not None
    ]
    # transformers 5 writes no name for full models.
    bases = (adapter.get("base_model_name_or_path"), config.get("_name_or_path"))
    base = next((value for value in bases if isinstance(value, str) and value), None)
    if base is not None:
        revision = adapter.get("revision")
        base = (f"{base}@{revision}" if revision else base)[:_MOST_TEXT]
    dtypes: Counter[str] = Counter()
    for header in headers:
        dtypes.update(header.dtypes)
    rank = max((header.lora_rank for header in headers), default=0) or adapter.get("r")
    return {
        "type": _type(adapter, config, headers) if is_loadable(names) else "other",
        "base_model": base,
        "lora_rank": rank if isinstance(rank, int) else None,
        "step": checkpoint_step(directory, name, names),
        "tensors": sum(header.tensors for header in headers),
        "parameters": sum(dtypes.values()),
        "dtypes": dict(dtypes),
    }


def _weights(names: Collection[str]) -> List[str]:
    """Return the safetensors files, without the ``sharded/`` parts of files that torch has consolidated."""
    weights = sorted(name for name in names if name.endswith(".safetensors"))
    folders = {name[: name.rfind("/") + 1] for name in weights}
    return [
        name
        for name in weights
        if "sharded/" not in name or name[: name.rfind("sharded/")] not in folders
    ]


def _type(adapter: Dict[str, Any], config: Dict[str, Any], headers: Iterable[TensorTotals]) -> str:
    if adapter:
        kind = str(adapter.get("peft_type") or "LORA").lower()[:_MOST_TEXT]
        if kind != "lora":  # AdaLoRA also has lora_E, which vLLM doesn't know
            return kind
        if adapter.get("use_dora"):
            return "dora"
        return "lora+modules" if adapter.get("modules_to_save") else "lora"
    architectures = config.get("architectures")
    words = [config.get("model_type"), *(architectures if isinstance(architectures, list) else [])]
    if any("whisper" in str(word).lower() for word in words if word):
        return "whisper"
    return "full" if config or list(headers) else "other"


def unfinished_reason(
    directory: Path, name: str, files: Mapping[str, int], siblings: Collection[str], rank: int
) -> Optional[str]:
    """Return how a checkpoint's files show that the trainer did not finish saving them; None if nothing shows it.

    ``files``: sizes by path. ``siblings``: paths of the files of other checkpoints of its series. Files that only rank
    0 writes are not missed on other ranks.
    """
    base = name.rpartition("/")[2]
    if is_temporary_checkpoint(name):
        return f"{base} is a temporary name"
    marker = f"{base[:-5] if base.endswith('.ckpt') else base}-unfinished"  # of NeMo
    place = directory.parent if directory.name == base else directory
    left = [
        *{_SENTINEL, ".metadata.tmp"}.intersection(files),
        *([marker] if (place / marker).exists() else ()),
    ]
    missing = [] if rank else _missing_files(files)
    is_trainer = _TRAINING_ARGS in files and parse_step(name) is not None
    if TRAINER_STATE not in files and (is_trainer or TRAINER_STATE in siblings):
        missing.append(TRAINER_STATE)
    reasons = [*(f"{path} is left" for path in left), *(f"{path} is missing" for path in missing)]
    cut = (path for path, size in sorted(files.items()) if _is_truncated(directory / path, size))
    return reasons[0] if reasons else next((f"{path} is truncated" for path in cut), None)


def _missing_files(files: Collection[str]) -> List[str]:
    """Return files that belong to others: torch's ``.metadata``, which is renamed last, and shards of weights."""
    folders = sorted({path[: path.rfind("/") + 1] for path in files if path.endswith(".distcp")})
    shards = Counter(match.groups() for match in map(_SHARD.fullmatch, sorted(files)) if match)
    return [f"{folder}.metadata" for folder in folders if f"{folder}.metadata" not in files] + [
        f"a shard of {stem}-*-of-{count}{suffix}"
        for (stem, count, suffix), found in shards.items()
        if found < int(count) and f"{stem}{suffix}" not in files
    ]


def _is_truncated(path: Path, size: int) -> bool:
    """Check a safetensors file against its header, and a zip of ``torch.save`` for its end."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        start = stream.read(8)
        if path.suffix == ".safetensors":
            header, length = read_header(path), int.from_bytes(start, "little")
            end = header.size if header else length + 8 if length <= MAX_HEADER_BYTES else 0
            return size < max(8, end)
        if path.suffix in _ZIP_SUFFIXES and start.startswith(_ZIP_START):
            stream.seek(max(0, size - _ZIP_END_BYTES))
            return _ZIP_END not in stream.read()
    return False


def read_header(path: Path) -> Optional[TensorTotals]:
    """Read a safetensors file's tensor totals; None if it has no valid header.

    Format: 8 bytes of length, little endian, followed by that many bytes of JSON.
    """
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 2 <= length <= MAX_HEADER_BYTES:
                return None
            return _parse(json.loads(stream.read(length)), 8 + length)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error, RecursionError):
        return None


def _parse(document: Dict[str, Any], start: int) -> TensorTotals:
    if not isinstance(document.pop("__metadata__", {}), dict):
        raise TypeError("metadata is not an object")
    dtypes: Dict[str, int] = {}
    lora_rank, end = 0, 0
    for name, tensor in document.items():
        begin, stop = tensor["data_offsets"]
        if not all(isinstance(size, int) and 0 <= size < 2**63 for size in tensor["shape"]):
            raise ValueError("not a size")
        count = math.prod(tensor["shape"])
        bits = _BITS.get(tensor["dtype"], 8 * (stop - begin) // (count or 1))
        if stop - begin != count * bits // 8:
            raise ValueError("size of a tensor does not match its shape")
        dtypes[str(tensor["dtype"])] = dtypes.get(str(tensor["dtype"]), 0) + count
        end = max(end, stop)
        if _LORA_A.search(name) and tensor["shape"]:
            lora_rank = max(lora_rank, tensor["shape"][0])
    return TensorTotals(len(document), dtypes, lora_rank, start + end)


def _json(path: Path) -> Dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


_MOST_BYTES = 4096


def pointers_of(saved: SavedCheckpoint, manifest: Mapping[str, Any]) -> List[PointerFile]:
    """Return the pointers next to a checkpoint, with the values for it."""
    place = (saved.top / saved.name).parent
    pointers, names = [], list_names(place)
    for path in (place / name for name in filter(POINTER_NAME.fullmatch, names)):
        with contextlib.suppress(OSError, ValueError):
            target = os.readlink(path) if path.is_symlink() else None
            is_small = target is None and path.is_file() and path.stat().st_size <= _MOST_BYTES
            text = path.read_text("utf-8", "replace") if is_small else ""
            pointers.append(find_pointer(path.name, text.strip(), target, manifest, names))
    return [pointer for pointer in pointers if pointer is not None]


def place_pointers(manifest: Mapping[str, Any], rank: Path, visible: Path) -> List[str]:
    """Write the pointers of a checkpoint that was loaded below ``rank``; return their paths.

    ``visible``: that directory as the job sees it.
    """
    loaded = rank / manifest["name"]
    written = []
    for row in manifest.get("pointers") or ():
        pointer = PointerFile(str(row["name"]), str(row["kind"]), str(row["value"]))
        path = loaded.parent / pointer.name
        if "/" in pointer.name or os.path.lexists(path):
            continue
        if pointer.kind == "link":
            path.symlink_to(loaded.name)
        elif pointer.kind != "copy":
            is_path = pointer.kind == "path"
            path.write_text(str(visible / manifest["name"]) if is_path else pointer.value)
        elif pointer.value in [file["path"] for file in manifest["files"]]:
            os.link(loaded / pointer.value, path, follow_symlinks=False)
        written.append(path.relative_to(rank).as_posix())
    return written
