"""What runs use, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class VolumeMetrics:
    """A place on a disk: bytes in use there (None while that isn't known), and how full its file system is, from 0 to 1."""

    usage_bytes: int | None = None
    utilization: float | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """One GPU; ``utilization`` from 0 to 1. None is what the driver does not tell."""

    name: str
    utilization: float | None
    memory_usage_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class HostMetrics:
    """The machine around a run; ``cpu_usage`` in cores, the network's counters since it was booted."""

    cpu_count: int = 1
    cpu_usage: float | None = None
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    network_received_bytes: int = 0
    network_sent_bytes: int = 0

    @property
    def memory_utilization(self) -> float | None:
        """How much of its memory is in use, from 0 to 1."""
        if not self.memory_total_bytes:
            return None
        return 1 - self.memory_available_bytes / self.memory_total_bytes


@dataclass(frozen=True, slots=True)
class RankSample:
    """One look at one rank. ``time`` in Unix seconds; ``cpu_usage`` in cores since the look before; GPUs by their number."""

    rank: int
    node: str
    time: float
    cpu_usage: float | None
    cpu_memory_usage_bytes: int
    processes: int
    host: HostMetrics
    gpus: Mapping[str, GpuMetrics] = field(default_factory=dict)
    volumes: Mapping[str, VolumeMetrics] = field(default_factory=dict)
    problem: str | None = None

    @classmethod
    def of(cls, rank: int, node: str, row: Mapping[str, Any]) -> RankSample:
        """Read a sample as a node reports it; unknown fields are ignored."""
        names = row.get("gpu_names", {})
        return cls(
            rank=rank,
            node=node,
            time=float(row["time"]),
            cpu_usage=row.get("cpu_usage"),
            cpu_memory_usage_bytes=int(row["cpu_memory_usage_bytes"]),
            processes=int(row["processes"]),
            host=HostMetrics(
                **{name: row["host"].get(name) for name in HostMetrics.__dataclass_fields__}
            ),
            gpus={
                number: GpuMetrics(
                    str(names.get(number, "")),
                    busy,
                    row["gpu_memory_usage_bytes"].get(number),
                    row["gpu_memory_total_bytes"].get(number),
                )
                for number, busy in sorted(row.get("gpu_utilization", {}).items())
            },
            volumes={
                name: VolumeMetrics(
                    *(row[name].get(part) for part in VolumeMetrics.__dataclass_fields__)
                )
                for name in VOLUMES
                if name in row
            },
            problem=row.get("problem"),
        )


VOLUMES = ("ephemeral_storage", "checkpoints", "cache")
"""Where a run writes: working directory and scratch, checkpoints, the training cache."""
