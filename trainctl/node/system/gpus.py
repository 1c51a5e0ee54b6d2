"""GPUs of a host as reported by vendors' tools: devices, utilization, processes."""

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
    Optional,
    Tuple,
)

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.errors import NodeError, TrainctlError

_TIMEOUT_SECONDS = 30.0
"""Timeout of a tool: the first call after boot loads the driver."""

NVIDIA = "nvidia"
AMD = "amd"

_EXIT_NO_DEVICES = 6
"""Exit code of ``nvidia-smi`` without devices: NVML_ERROR_NOT_FOUND."""

_UNKNOWN = ("", "N/A", "0x0")
"""Placeholders of ``rocm-smi`` for missing values."""
_MIB = 2**20
_VISIBILITY_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)


class GpuDevice(NamedTuple):
    """A GPU; ``number`` in bus order, ``id`` is the UUID, or the number if declared.

    Memory in bytes, ``utilization`` from 0 to 1; None if the driver doesn't report it.
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
        """Name of its claim file."""
        return f"gpu/{self.id}"

    def matches_kind(self, kind: str) -> bool:
        """Match an accelerator by words; nameless GPUs match.

        All words of ``A100_40GB`` are in ``NVIDIA A100-PCIE-40GB``.
        """
        words = {word for word in re.split(r"[^A-Z0-9]+", kind.upper()) if word}
        return not self.name or words <= set(re.split(r"[^A-Z0-9]+", self.name.upper()))


class GpuHealth(NamedTuple):
    """Driver version, uncorrectable ECC errors since the driver was loaded, failed row remapping."""

    driver: str
    uncorrected: int
    remap_failed: bool


ListGpusFn = Callable[[], List[GpuDevice]]
"""Lists the GPUs. The host's tools may take seconds."""


class ToolTimeout(NodeError):
    """A tool timed out."""


def list_gpus(seconds: float = _TIMEOUT_SECONDS) -> List[GpuDevice]:
    """List the GPUs that the host's tools report; TrainctlError if a tool fails."""
    gpus = _nvidia(seconds) if shutil.which("nvidia-smi") else []
    return gpus or (_amd(seconds) if shutil.which("rocm-smi") else [])


def gpu_users(gpus: Iterable[GpuDevice]) -> Dict[str, str]:
    """Map GPU ids to the PID of the first process that computes on them."""
    present = list(gpus)
    vendors = {gpu.vendor for gpu in present}
    users: List[Tuple[str, str]] = []
    if NVIDIA in vendors:
        users += _nvidia_users()
    if AMD in vendors:
        users += _amd_users({gpu.number: gpu.id for gpu in present})
    return dict(reversed(users))


def visible_gpus(gpus: List[GpuDevice], variables: Mapping[str, str]) -> List[GpuDevice]:
    """GPUs that a process with these variables may use, by number or id prefix."""
    for name in _VISIBILITY_VARIABLES:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if words and words != ["all"]:
            numbers = {word for word in words if word.isdigit()}
            prefixes = tuple(word for word in words if not word.isdigit())
            return [
                gpu for gpu in gpus if str(gpu.number) in numbers or gpu.id.startswith(prefixes)
            ]
    return gpus


def _nvidia(seconds: float) -> List[GpuDevice]:
    """Parse ``nvidia-smi --query-gpu``: MiB and percent, ``[N/A]`` if unknown."""
    fields = "index,uuid,name,utilization.gpu,memory.used,memory.total"
    gpus = []
    for line, parts in _query_nvidia(fields, seconds):
        if len(parts) != len(fields.split(",")) or not parts[0].isdigit():
            raise NodeError(f"unexpected output of nvidia-smi: {line[:200]!r}")
        number, uuid, name, *measured = parts
        gpus.append(GpuDevice(int(number), uuid, name, NVIDIA, *_in_units(measured, _MIB)))
    return gpus


def nvidia_health(seconds: float = _TIMEOUT_SECONDS) -> Dict[str, GpuHealth]:
    """Return the health of NVIDIA's GPUs by UUID, as far as the driver reports it."""
    fields = "uuid,driver_version,ecc.errors.uncorrected.volatile.total,remapped_rows.failure"
    health: Dict[str, GpuHealth] = {}
    if not shutil.which("nvidia-smi"):
        return health
    try:
        rows = _query_nvidia(fields, seconds)
    except TrainctlError:  # an old driver doesn't know a field
        return {}
    for _, parts in rows:
        if len(parts) == len(fields.split(",")):
            uuid, driver, errors, failed = parts
            count = int(errors) if errors.isdigit() else 0
            health[uuid] = GpuHealth(driver, count, failed.lower() in ("yes", "1"))
    return health


def _query_nvidia(fields: str, seconds: float) -> List[Tuple[str, List[str]]]:
    """Query fields of all GPUs; each line that ``nvidia-smi`` prints, and its values."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    lines = _output(query, _EXIT_NO_DEVICES, seconds).splitlines()
    return [(line, [part.strip() for part in line.split(",")]) for line in lines]


def nvidia_users(seconds: float = _TIMEOUT_SECONDS) -> Dict[str, str]:
    """Map ids of NVIDIA's GPUs to a process that computes on them; empty if the tool fails."""
    try:
        return dict(_nvidia_users(seconds)) if shutil.which("nvidia-smi") else {}
    except TrainctlError:
        return {}


def _nvidia_users(seconds: float = _TIMEOUT_SECONDS) -> Iterator[Tuple[str, str]]:
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    for line in _output(query, _EXIT_NO_DEVICES, seconds).splitlines():
        gpu, _, pid = line.partition(",")
        if gpu.strip():
            yield gpu.strip(), pid.strip()


def _amd(seconds: float) -> List[GpuDevice]:
    """Parse ``rocm-smi``: ``cardN`` objects in bytes and percent."""
    options = ("--showuniqueid", "--showbus", "--showproductname", "--showuse")
    text = _output(["rocm-smi", *options, "--showmeminfo", "vram", "--json"], 0, seconds)
    try:
        # Warnings may precede and follow it.
        cards = json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])[0]
    except ValueError:
        raise NodeError("unexpected output of rocm-smi: not JSON") from None
    values = {
        int(card[4:]): {name.lower(): str(value) for name, value in values.items()}
        for card, values in cards.items()
        if card.startswith("card") and card[4:].isdigit()
    }
    keys = ("gpu use (%)", "vram total used memory (b)", "vram total memory (b)")
    gpus = []
    for number, card in values.items():
        name = card.get("card series") or card.get("card model") or "AMD"
        usage = _in_units([card.get(key, "") for key in keys], 1)
        gpus.append(GpuDevice(number, _card_id(number, values), name, AMD, *usage))
    return gpus


def _in_units(
    measured: List[str], unit: int
) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    """Convert utilization, used and total memory from a tool's units."""
    busy, used, total = (int(text) if text.isdigit() else None for text in measured)
    return (
        None if busy is None else busy / 100,
        None if used is None else used * unit,
        None if total is None else total * unit,
    )


def _card_id(number: int, cards: Mapping[int, Mapping[str, str]]) -> str:
    """Unique id or bus address: partitions of a GPU share an id."""
    for key in ("unique id", "pci bus"):
        own = cards[number].get(key, "")
        if own not in _UNKNOWN and sum(card.get(key) == own for card in cards.values()) == 1:
            return own
    return f"amd-{number}"


def _amd_users(ids: Mapping[int, str]) -> Iterator[Tuple[str, str]]:
    """Parse ``rocm-smi --showpidgpus`` of ROCm 4.5 to 7.

    ``--json`` prints nothing for it, ``--showpids`` only the number of cards, and ``amd-smi`` 5.6 all cards.
    """
    pid = ""
    for line in _output(["rocm-smi", "--showpidgpus"]).splitlines():
        match = re.match(r"PID (\d+) is using \d+ DRM device", line)
        words = line.split()
        if match:
            pid = match.group(1)
        elif pid and words and all(word.isdigit() for word in words):
            yield from ((ids[int(word)], pid) for word in words if int(word) in ids)
        else:
            pid = ""


def _output(argv: List[str], exit_empty: int = 0, seconds: float = _TIMEOUT_SECONDS) -> str:
    """Output of a tool; empty for exit code ``exit_empty``, TrainctlError for others."""
    try:
        process = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout(f"{argv[0]} timed out after {seconds:g} s") from None
    except OSError as error:
        raise NodeError(f"cannot run {argv[0]}: {error.strerror}") from None
    if process.returncode not in (0, exit_empty):
        output = (process.stdout + process.stderr).decode(errors="replace").strip()
        raise NodeError(f"{argv[0]} failed with exit code {process.returncode}: {output[:300]}")
    return process.stdout.decode(errors="replace") if process.returncode == 0 else ""
