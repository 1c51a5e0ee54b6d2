"""What the GPUs of this machine do, as the vendors' own programs tell it."""

from __future__ import annotations

import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainctl.node.turns.gpus import json_of

_MIB = 2**20
_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
_ROCM = ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showproductname", "--json")
_CHOOSING = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)


class Silent(Exception):
    """The program did not answer in time."""


class Gpu(NamedTuple):
    """One GPU by its number; ``utilization`` from 0 to 1, None for what the driver does not tell."""

    number: str
    uuid: str
    name: str
    utilization: Optional[float]
    memory_used: Optional[int]
    memory_total: Optional[int]


def gpus(seconds: float) -> List[Gpu]:
    """Every GPU; none where there is no program to ask. Silent if it takes longer."""
    text = _ask(_NVIDIA, seconds)
    if text:
        return [gpu for gpu in map(_nvidia, text.splitlines()) if gpu is not None]
    text = _ask(_ROCM, seconds)
    return _rocm(text) if text else []


def visible(found: List[Gpu], variables: Mapping[str, str]) -> List[Gpu]:
    """Those that a process with these variables may use: by index, or by UUID or its beginning."""
    for name in _CHOOSING:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if words and words != ["all"]:
            return [gpu for gpu in found if any(_named(gpu, word) for word in words)]
    return found


def _named(gpu: Gpu, word: str) -> bool:
    return word == gpu.number if word.isdigit() else gpu.uuid.startswith(word)


def _ask(argv: Tuple[str, ...], seconds: float) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Silent(argv[0]) from None
    except OSError:
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _nvidia(line: str) -> Optional[Gpu]:
    """https://docs.nvidia.com/deploy/nvidia-smi: MiB and percent, ``[N/A]`` for what isn't known."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < 6 or not cells[0].isdigit():
        return None
    busy, used, total = (_number(cell) for cell in cells[-3:])
    return Gpu(cells[0], cells[1], ",".join(cells[2:-3]), *_in_units(busy, used, total, _MIB))


def _rocm(text: str) -> List[Gpu]:
    """``rocm-smi --json``: an object a card, values as text in bytes and percent."""
    try:
        cards: Dict[str, Any] = json_of(text)
    except ValueError:
        return []
    found = []
    for name, card in sorted(cards.items()):
        if not name.startswith("card") or not isinstance(card, dict):
            continue
        busy = _number(str(card.get("GPU use (%)")))
        used = _number(str(card.get("VRAM Total Used Memory (B)")))
        total = _number(str(card.get("VRAM Total Memory (B)")))
        series = str(card.get("Card Series", card.get("Card series", "")))
        found.append(Gpu(name[4:], "", series, *_in_units(busy, used, total, 1)))
    return found


def _in_units(
    busy: Optional[float], used: Optional[float], total: Optional[float], unit: int
) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    return (
        None if busy is None else busy / 100,
        None if used is None else int(used * unit),
        None if total is None else int(total * unit),
    )


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None
