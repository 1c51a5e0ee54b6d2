"""The GPUs of a host: what its tools report, who uses them, and how a job is shown only its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from trainctl.node.system.failure import Failure

_SECONDS = 30.0
"""How long a tool may take: the first call after a boot loads the driver."""

NVIDIA = "nvidia"
AMD = "amd"


class Gpu(NamedTuple):
    """One GPU. ``number`` counts in the order of the bus, ``id`` is its uuid; of one that is only declared, its number.

    ``memory_mib`` is in MiB, None where nobody says.
    """

    number: int
    id: str
    name: str = ""
    memory_mib: Optional[int] = None
    driver: str = ""
    vendor: str = ""

    @property
    def claim(self) -> str:
        """The name that whoever uses it holds."""
        return f"gpu/{self.id}"

    def is_a(self, kind: str) -> bool:
        """Whether an accelerator's name means it: all words of ``A100_40GB`` are in ``NVIDIA A100-PCIE-40GB``; all may be nameless."""
        words = {word for word in re.split(r"[^A-Z0-9]+", kind.upper()) if word}
        return not self.name or words <= set(re.split(r"[^A-Z0-9]+", self.name.upper()))

    def to_json(self) -> Dict[str, Any]:
        """As ``facts`` reports it."""
        return {
            "index": self.number,
            "uuid": self.id,
            "name": self.name,
            "memory_mib": self.memory_mib,
            "driver": self.driver,
        }


def reported() -> List[Gpu]:
    """The GPUs that the host's tools report; none where there is no tool. Failure where one doesn't work."""
    if shutil.which("nvidia-smi"):
        return _nvidia()
    return _amd() if shutil.which("rocm-smi") else []


def usable(declared: Optional[int]) -> List[Gpu]:
    """The GPUs that jobs may claim: the first ``declared`` of those reported, by index, or so many that nothing reports.

    None leaves it to the host. Failure where more are declared than there are.
    """
    if declared == 0:
        return []
    found = sorted(reported())
    if not found:
        return [Gpu(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(found):
        raise Failure(
            "missing", f"{declared} GPUs are declared for this node and it has {len(found)}"
        )
    return found[:declared]


def used_by_others() -> Set[str]:
    """Ids of GPUs on which some process computes. Whose it is does not matter to one who holds no claim yet."""
    if not shutil.which("nvidia-smi"):
        return set()  # rocm-smi does not say which process is on which GPU
    lines = _output(["nvidia-smi", "--query-compute-apps=gpu_uuid", "--format=csv,noheader"])
    return {line.strip() for line in lines.splitlines() if line.strip()}


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables that show a job its own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBLE, "")}
"""What hides every GPU from a program that has claimed none."""


def variables(claimed: Sequence[Gpu]) -> Dict[str, str]:
    """What shows a job its own GPUs and no others, by their numbers in the order of the bus."""
    numbers = ",".join(str(one.number) for one in claimed)
    found = {"BT_NUM_GPUS": str(len(claimed))}
    if claimed and claimed[0].vendor == AMD:
        return {**found, "HIP_VISIBLE_DEVICES": numbers}
    return {**found, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _nvidia() -> List[Gpu]:
    """``nvidia-smi --help-query-gpu`` names the fields; units are MiB."""
    fields = "index,name,memory.total,driver_version,uuid"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    found = []
    for line in _output(query).splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(fields.split(",")) or not parts[0].isdigit():
            raise Failure("failed", f"nvidia-smi says {line[:200]!a}, which is not understood")
        memory = int(parts[2]) if parts[2].isdigit() else None
        found.append(Gpu(int(parts[0]), parts[4], parts[1], memory, parts[3], NVIDIA))
    return found


def _amd() -> List[Gpu]:
    """``rocm-smi``: an object of ``cardN`` objects, whose keys differ in case from version to version."""
    asked = ["--showuniqueid", "--showproductname", "--showmeminfo", "vram", "--json"]
    text = _output(["rocm-smi", *asked])
    try:
        cards = json.loads(text)
    except ValueError:
        raise Failure("failed", "rocm-smi does not answer with JSON") from None
    found = []
    for card, values in cards.items():
        if card.startswith("card") and card[4:].isdigit():
            said = {name.lower(): str(value) for name, value in values.items()}
            memory = said.get("vram total memory (b)", "")
            name = said.get("card series") or said.get("card model") or "AMD"
            number = int(card[4:])
            unique = said.get("unique id") or f"amd-{number}"
            size = int(memory) >> 20 if memory.isdigit() else None
            found.append(Gpu(number, unique, name, size, "", AMD))
    return found


def _output(argv: List[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failure("failed", f"{argv[0]} did not answer within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise Failure("failed", f"{argv[0]} can't be started: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise Failure("failed", f"{argv[0]} exits with {done.returncode}: {said[:300]}")
    return done.stdout.decode(errors="replace")
