"""GPUs of a host, as the vendors' tools report them: which exist, how busy they are, and which processes compute on them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import (
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
)

from trainctl.base.failure import Failure

_SECONDS = 30.0
"""How long a tool may take: the first call after a boot loads the driver."""

NVIDIA = "nvidia"
AMD = "amd"

_NO_DEVICES = 6
"""What ``nvidia-smi`` exits with where it finds nothing: NVML_ERROR_NOT_FOUND, with "No devices were found"."""

_NAMELESS = ("", "N/A", "0x0")
"""What ``rocm-smi`` says in place of something that a card hasn't got."""
_MIB = 2**20
_VISIBILITY_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)


class GpuDevice(NamedTuple):
    """One GPU. ``number`` counts in the order of the bus, ``id`` is its uuid; of one that is only declared, its number.

    Memory is in bytes, ``utilization`` from 0 to 1; None is what the driver does not tell.
    """

    number: int
    id: str
    name: str = ""
    vendor: str = ""
    utilization: Optional[float] = None
    memory_used: Optional[int] = None
    memory_total: Optional[int] = None

    @property
    def claim(self) -> str:
        """The name of its claim."""
        return f"gpu/{self.id}"

    def is_a(self, kind: str) -> bool:
        """Whether an accelerator's name means it: all words of ``A100_40GB`` are in ``NVIDIA A100-PCIE-40GB``; all may be nameless."""
        words = {word for word in re.split(r"[^A-Z0-9]+", kind.upper()) if word}
        return not self.name or words <= set(re.split(r"[^A-Z0-9]+", self.name.upper()))


ListGpusFn = Callable[[], List[GpuDevice]]
"""Says which GPUs there are. Asking the host's tools may take seconds."""


class ToolTimeout(Failure):
    """A tool did not answer in time."""


def list_gpus(seconds: float = _SECONDS) -> List[GpuDevice]:
    """The GPUs that the host's tools report; none where there is no tool. Failure where one doesn't work."""
    found = _nvidia(seconds) if shutil.which("nvidia-smi") else []
    return found or (_amd(seconds) if shutil.which("rocm-smi") else [])


def gpu_users(gpus: Iterable[GpuDevice]) -> Dict[str, str]:
    """PID of the first process that computes on a GPU, by id; GPUs without one are left out."""
    present = list(gpus)
    vendors = {gpu.vendor for gpu in present}
    found: List[Tuple[str, str]] = []
    if NVIDIA in vendors:
        found += _nvidia_users()
    if AMD in vendors:
        found += _amd_users({gpu.number: gpu.id for gpu in present})
    return dict(reversed(found))


def visible_gpus(found: List[GpuDevice], variables: Mapping[str, str]) -> List[GpuDevice]:
    """Those that a process with these variables may use: by number, or by id or its beginning."""
    for name in _VISIBILITY_VARIABLES:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if words and words != ["all"]:
            return [gpu for gpu in found if any(_matches(gpu, word) for word in words)]
    return found


def _matches(gpu: GpuDevice, word: str) -> bool:
    return word == str(gpu.number) if word.isdigit() else gpu.id.startswith(word)


def _nvidia(seconds: float) -> List[GpuDevice]:
    """``nvidia-smi --help-query-gpu`` names the fields: MiB and percent, ``[N/A]`` for what isn't known."""
    fields = "index,uuid,name,utilization.gpu,memory.used,memory.total"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    found = []
    for line in _output(query, _NO_DEVICES, seconds).splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(fields.split(",")) or not parts[0].isdigit():
            raise Failure("failed", f"nvidia-smi says {line[:200]!r}, which is not understood")
        number, uuid, name, *measured = parts
        found.append(GpuDevice(int(number), uuid, name, NVIDIA, *_in_units(measured, _MIB)))
    return found


def _nvidia_users() -> Iterator[Tuple[str, str]]:
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    for line in _output(query, _NO_DEVICES).splitlines():
        gpu, _, pid = line.partition(",")
        if gpu.strip():
            yield gpu.strip(), pid.strip()


def _amd(seconds: float) -> List[GpuDevice]:
    """``rocm-smi``: an object of ``cardN`` objects in bytes and percent, whose keys differ in case from version to version."""
    asked = [
        "--showuniqueid",
        "--showbus",
        "--showproductname",
        "--showuse",
        "--showmeminfo",
        "vram",
    ]
    text = _output(["rocm-smi", *asked, "--json"], 0, seconds)
    try:
        # There may be warnings before and after it.
        cards = json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])[0]
    except ValueError:
        raise Failure("failed", "rocm-smi does not answer with JSON") from None
    said = {
        int(card[4:]): {name.lower(): str(value) for name, value in values.items()}
        for card, values in cards.items()
        if card.startswith("card") and card[4:].isdigit()
    }
    return [_card(number, said) for number in said]


def _card(number: int, cards: Mapping[int, Mapping[str, str]]) -> GpuDevice:
    said = cards[number]
    name = said.get("card series") or said.get("card model") or "AMD"
    keys = ("gpu use (%)", "vram total used memory (b)", "vram total memory (b)")
    measured = [said.get(key, "") for key in keys]
    return GpuDevice(number, _card_id(number, cards), name, AMD, *_in_units(measured, 1))


def _in_units(
    measured: List[str], unit: int
) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    """Percent, memory used and all memory, as a tool writes them."""
    busy, used, total = (int(text) if text.isdigit() else None for text in measured)
    return (
        None if busy is None else busy / 100,
        None if used is None else used * unit,
        None if total is None else total * unit,
    )


def _card_id(number: int, cards: Mapping[int, Mapping[str, str]]) -> str:
    """Consumers' cards have no unique id, and partitions of one GPU all have the same: then it is known by where it is on the bus."""
    for key in ("unique id", "pci bus"):
        own = cards[number].get(key, "")
        if own not in _NAMELESS and sum(card.get(key) == own for card in cards.values()) == 1:
            return own
    return f"amd-{number}"


def _amd_users(ids: Mapping[int, str]) -> Iterator[Tuple[str, str]]:
    """By ``--showpidgpus``, which is the same text from ROCm 4.5 to 7, and nothing with ``--json``: a process, then the numbers of the cards on which it has queues.

    ``--showpids`` tells how many cards a process has, not which; ``amd-smi`` 5.6 told all cards for each.
    """
    pid = ""
    for line in _output(["rocm-smi", "--showpidgpus"]).splitlines():
        named = re.match(r"PID (\d+) is using \d+ DRM device", line)
        words = line.split()
        if named:
            pid = named.group(1)
        elif pid and words and all(word.isdigit() for word in words):
            yield from ((ids[int(word)], pid) for word in words if int(word) in ids)
        else:
            pid = ""


def _output(argv: List[str], nothing: int = 0, seconds: float = _SECONDS) -> str:
    """What a tool writes; nothing if it exits with the code that says so. Failure for any other code."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout("failed", f"{argv[0]} did not answer within {seconds:g} s") from None
    except OSError as error:
        raise Failure("failed", f"{argv[0]} can't be started: {error.strerror}") from None
    if done.returncode not in (0, nothing):
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise Failure("failed", f"{argv[0]} exits with {done.returncode}: {said[:300]}")
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
