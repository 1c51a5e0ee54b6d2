"""GPUs that no other test knows: a tool on PATH reports them, and claims on them are claims of this test."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Gpus:
    """Some GPUs of one host; ``tools`` goes in front of PATH."""

    tools: Path
    ids: list[str]

    @classmethod
    def make(cls, tools: Path, count: int, name: str = "NVIDIA H100 80GB HBM3") -> Gpus:
        """So many, of one kind."""
        tools.mkdir()
        tools.chmod(0o755)
        found = cls(tools, [f"GPU-{uuid.uuid4()}" for _ in range(count)])
        lines = "".join(f"{at}, {name}, 81559, 550.54, {one}\n" for at, one in enumerate(found.ids))
        (tools / "gpus").write_text(lines)
        found.compute_on()
        tool = tools / "nvidia-smi"
        tool.write_text(
            '#!/bin/sh\ncd "${0%/*}" && case "$1" in --query-gpu=*) cat gpus ;; *) cat used ;; esac\n'
        )
        tool.chmod(0o755)
        return found

    def compute_on(self, *ids: str) -> None:
        """From now on some process computes on these, and on no others."""
        (self.tools / "used").write_text("".join(f"{one}\n" for one in ids))
