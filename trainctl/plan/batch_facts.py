"""What a plan knows of batch systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainctl.model.address import Address
from trainctl.plugin_api.scheduler import BatchForecast, PartitionFacts


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch system: its partitions and when each job would start; a ``problem`` if it doesn't respond."""

    partitions: tuple[PartitionFacts, ...] = ()
    forecasts: Mapping[Address, BatchForecast] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A cluster's batch system, and its new runs with the forecast of their start."""

    cluster: Address
    partitions: tuple[PartitionFacts, ...]
    jobs: tuple[tuple[Address, BatchForecast], ...]
