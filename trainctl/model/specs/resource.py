"""Desired weights, clusters and caches, with defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Position
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.checks import CheckedSection, Size, Text, Texts, listed
from trainctl.model.specs.job_spec import JobSpec


class _Attributes:
    """Conversion from and to the attributes of a resource."""

    __slots__ = ()

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Read the attributes of a resource."""
        return from_json(cls, attributes)

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the resource."""
        return dict(to_json(self))


@dataclass(frozen=True, slots=True)
class WeightsSpec(_Attributes):
    """Weights: a source and patterns of files.

    A plan adds ``revision``, ``pin``, ``files`` and ``bytes``.
    """

    source: str
    mount_location: str | None = None
    auth: SourceAuthSpec | None = None
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None
    sha256: str | None = None
    name: str | None = field(default=None, metadata=OMIT_EMPTY)
    revision: str | None = field(default=None, metadata=OMIT_EMPTY)
    pin: str | None = field(default=None, metadata=OMIT_EMPTY)
    files: int | None = field(default=None, metadata=OMIT_EMPTY)
    bytes: int | None = field(default=None, metadata=OMIT_EMPTY)

    @property
    def endpoint_url(self) -> str | None:
        """Custom endpoint URL of the bucket."""
        return self.auth.endpoint_url if self.auth else None


@dataclass(frozen=True, slots=True)
class CacheSpec(_Attributes):
    """A training cache of a project, or with scope ``team`` of all projects."""

    scope: str = "project"
    project: str | None = None
    cluster: str = ""
    size: int | str | None = None
    dir: str | None = None

    @property
    def cluster_address(self) -> Address:
        """Address of its cluster."""
        return Address(Kind.CLUSTER, self.cluster)


@dataclass(frozen=True, slots=True)
class CacheTier(CheckedSection):
    """One tier of a weight cache."""

    dir: Text | None = None
    """Absolute directory."""
    size: Size | None = None
    """Size limit, for example 2TB."""


@dataclass(frozen=True, slots=True)
class ClusterCache(CheckedSection):
    """Weight caches of a cluster."""

    node: CacheTier | None = None
    """Cache on the disk of each node."""
    cluster: CacheTier | None = None
    """Cache on a file system that all nodes share."""
    max_rate: Size | None = field(default=None, metadata=OMIT_EMPTY)
    """Download limit of each node in bytes per second, for example 100MB."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster; ``settings`` are those of its provider.

    ``forgotten``: names of nodes that were removed from the state.
    """

    provider: str = ""
    cache: ClusterCache = ClusterCache()
    price_per_hour: float | None = None
    forgotten: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> ClusterSpec:
        """Read the attributes of a cluster's resource."""
        settings = {
            key: value for key, value in attributes.items() if key not in _CLUSTER_ATTRIBUTES
        }
        own = {
            key: attributes[key] for key in _CLUSTER_ATTRIBUTES if attributes.get(key) is not None
        }
        return from_json(cls, {**own, "settings": settings})


_CLUSTER_ATTRIBUTES = ("provider", "cache", "price_per_hour", "forgotten")


@dataclass(frozen=True, slots=True)
class Lifecycle(CheckedSection):
    """Lifecycle settings of a resource."""

    prevent_destroy: bool = False
    """Refuse plans that destroy or replace this resource. Kept in the state, so it also holds
    after the block is removed."""
    ignore_changes: Texts = field(default_factory=tuple)
    """Attributes whose changes are ignored, for example ``compute``."""


RerunCause = Literal["config", "code", "weights"]


@dataclass(frozen=True, slots=True)
class JobLifecycle(Lifecycle):
    """Lifecycle settings of a job."""

    rerun_on: Annotated[tuple[RerunCause, ...], listed()] = field(
        default_factory=lambda: ("config",)
    )
    """Changes that make a job run again; by default ``config``."""


class ResourceAttributes:
    """Typed access to the attributes of a resource."""

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
class DesiredResource(ResourceAttributes):
    """A desired resource, with the attributes of its kind."""

    address: Address
    provider: str
    attributes: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: JobLifecycle = JobLifecycle()
    where: Position | None = field(default=None, compare=False)
