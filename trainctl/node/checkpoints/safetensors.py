"""The header of a safetensors file, and nothing else of it.

Format: 8 bytes of length, little endian, then so many bytes of JSON; https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

MOST_HEADER_BYTES = 10 * 2**20
"""A longer header is refused: that many tensors no checkpoint has, and a hostile file may claim any number."""

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class Header(NamedTuple):
    """What it says: ``dtypes`` counts parameters by type, ``end`` is the size that the whole file must have."""

    tensors: int
    parameters: int
    dtypes: Dict[str, int]
    metadata: Dict[str, str]
    end: int


def read_header(path: Path) -> Optional[Header]:
    """The header; None if the file has none that can be believed."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 2 <= length <= MOST_HEADER_BYTES:
                return None
            return _parse(json.loads(stream.read(length)), 8 + length)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error, RecursionError):
        return None


def is_cut(path: Path) -> bool:
    """Whether the file is shorter than its beginning says. One whose header can't be believed is not called cut."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        begin = stream.read(8)
    if len(begin) < 8:
        return True
    (length,) = struct.unpack("<Q", begin)
    if size < 8 + length:
        return True
    header = read_header(path)
    return header is not None and size < header.end


def _parse(document: Dict[str, Any], data: int) -> Header:
    metadata = document.pop("__metadata__", None) or {}
    dtypes: Dict[str, int] = {}
    end = 0
    for tensor in document.values():
        begin, stop = tensor["data_offsets"]
        count = math.prod(_natural(size) for size in tensor["shape"])
        if (
            stop - begin
            != count * _BITS.get(tensor["dtype"], 8 * (stop - begin) // (count or 1)) // 8
        ):
            raise ValueError("a tensor is not as long as its shape says")
        dtypes[str(tensor["dtype"])] = dtypes.get(str(tensor["dtype"]), 0) + count
        end = max(end, _natural(stop))
    names = {str(name): str(value) for name, value in metadata.items()}
    return Header(len(document), sum(dtypes.values()), dtypes, names, data + end)


def _natural(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("not a size")
    return value
