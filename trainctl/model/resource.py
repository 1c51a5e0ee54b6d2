"""One declared thing, with every default filled in and every reference resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainctl.model.address import Address
from trainctl.model.diagnostics import Position
from trainctl.model.job_spec import JobSpec
from trainctl.model.resource_specs import CacheSpec, ClusterSpec, WeightsSpec


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """How a resource answers to changes; kept in the state so that it outlives its block."""

    prevent_destroy: bool = False
    ignore_changes: tuple[str, ...] = ()
    rerun_on: tuple[str, ...] = ("config",)


class Specified:
    """Attributes of a resource, as JSON and as typed values."""

    address: Address
    attributes: Mapping[str, Any]

    @cached_property
    def job_spec(self) -> JobSpec:
        """The attributes of a job."""
        return JobSpec.from_attributes(self.attributes)

    @cached_property
    def weights_spec(self) -> WeightsSpec:
        """The attributes of weights."""
        return WeightsSpec.from_attributes(self.attributes)

    @cached_property
    def cache_spec(self) -> CacheSpec:
        """The attributes of a training cache."""
        return CacheSpec.from_attributes(self.attributes)

    @cached_property
    def cluster_spec(self) -> ClusterSpec:
        """The attributes of a cluster."""
        return ClusterSpec.from_attributes(self.attributes)


@dataclass(frozen=True)
class Resource(Specified):
    """A desired resource. ``attributes`` are its values as plans show them; DESIGN.md of ``desired`` lists them."""

    address: Address
    provider: str
    attributes: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    where: Position | None = field(default=None, compare=False)
