"""GPUs that no other test knows: a tool on PATH reports them, and claims on them are claims of this test."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass
class FakeNvidiaGpus:
    """Some GPUs of one host; ``tools`` goes in front of PATH."""

    tools: Path
    ids: list[str]

    @classmethod
    def make(cls, tools: Path, count: int, name: str = "NVIDIA H100 80GB HBM3") -> FakeNvidiaGpus:
        """So many, of one kind."""
        tools.mkdir()
        tools.chmod(0o755)
        gpus = cls(tools, [f"GPU-{uuid.uuid4()}" for _ in range(count)])
        lines = "".join(f"{at}, {gpu}, {name}, 0, 0, 81559\n" for at, gpu in enumerate(gpus.ids))
        (tools / "gpus").write_text(lines)
        gpus.compute_on()
        gpus.report_health()
        asked = 'case "$1" in --query-gpu=uuid,*) cat health ;; --query-gpu=*) cat gpus ;; *) cat used ;; esac'
        _program(tools / "nvidia-smi", f'cd "${{0%/*}}" && {asked}')
        return gpus

    def compute_on(self, *ids: str) -> None:
        """From now on this process computes on these, and on no others."""
        (self.tools / "used").write_text("".join(f"{item}, {os.getpid()}\n" for item in ids))

    def report_health(self, *, errors: int = 0, driver: str = "550.54.15") -> None:
        """From now on the first GPU reports this number of uncorrectable ECC errors."""
        counts = [errors, *[0] * (len(self.ids) - 1)]
        lines = (
            f"{item}, {driver}, {count}, No\n" for item, count in zip(self.ids, counts, strict=True)
        )
        (self.tools / "health").write_text("".join(lines))


WARNING = (
    "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
)
"""What ``rocm-smi`` of ROCm 7 writes first, before JSON, too."""


@dataclass
class FakeAmdGpus:
    """Some cards of AMD: a ``rocm-smi`` on PATH answers as that of rocm-smi-lib 6.2.4 with a Radeon 780M."""

    tools: Path
    buses: list[str]

    @classmethod
    def make(cls, tools: Path, count: int, before: str = "", unique: str = "N/A") -> FakeAmdGpus:
        """So many; ``before`` is what is written before the JSON."""
        tools.mkdir()
        domain = uuid.uuid4().hex[:4].upper()
        gpus = cls(tools, [f"{domain}:{0xC4 + at:02X}:00.0" for at in range(count)])
        cards = {f"card{at}": _card(bus, unique) for at, bus in enumerate(gpus.buses)}
        (tools / "cards").write_text(f"{before}{json.dumps(cards)}\n")
        gpus.compute({})
        # a machine with AMD's cards may have the other vendor's tool
        _program(tools / "nvidia-smi", "echo 'No devices were found'; exit 6")
        asked = 'case "$*" in *--showpidgpus*--json*) ;; *--showpidgpus*) cat used ;; *) cat cards ;; esac'
        _program(tools / "rocm-smi", f'cd "${{0%/*}}" && {asked}')
        return gpus

    def compute(self, users: dict[int, list[int]], before: str = "") -> None:
        """From now on these processes have queues on the cards of these numbers, as ROCm 4.5 to 7 show it."""
        lines = []
        for pid, cards in users.items():
            lines.append(f"PID {pid} is using {len(cards)} DRM device(s){':' if cards else ''}")
            lines += [f"{card} " for card in cards]
        text = "\n".join(lines or ["No KFD PIDs currently running"])
        (self.tools / "used").write_text(_FRAME.format(before=before, text=text))


_FRAME = """\

{before}============================ ROCm System Management Interface ============================
================================== GPUs Indexed by PID ===================================
{text}
================================== End of ROCm SMI Log ===================================
"""


def _card(bus: str, unique: str) -> dict[str, str]:
    return {
        "Device Name": "Phoenix3",
        "Unique ID": unique,
        "PCI Bus": bus,
        "VRAM Total Memory (B)": "17163091968",
        "VRAM Total Used Memory (B)": "28000256",
        "Card Series": "AMD Radeon RX 7900 XTX",
    }


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
