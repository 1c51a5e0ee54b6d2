"""Weights, clusters and caches."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from trainctl.base.lazy_dataclass import dataclass, field, fields
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Position
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json
from trainctl.model.source_uri import SourceUri, parse_source
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.checks import (
    OTHERS,
    CheckedSection,
    DisplayName,
    JobLifecycle,
    Lifecycle,
    Name,
    Size,
    Text,
    limits,
    named,
    validation_error,
)
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
    def uri(self) -> SourceUri:
        """The parsed source."""
        return parse_source(self.source)

    @property
    def endpoint_url(self) -> str | None:
        """Custom endpoint URL of the bucket."""
        return self.auth.endpoint_url if self.auth else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(CheckedSection):
    """Nodes of one provider, with the provider's own settings."""

    provider: Name
    """Provider plugin, for example ``local`` or ``ssh``."""
    cache: ClusterCache | None = None
    """Weight caches of the cluster."""
    price_per_hour: Annotated[float, limits(ge=0)] | None = None
    """Cost of one node per hour, for the cost estimate of plans."""
    lifecycle: Lifecycle = Lifecycle()
    """Lifecycle settings."""
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=named(OTHERS))
    """The provider's own keys, as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec(Cluster):
    """A cluster, with the defaults of its provider in ``settings``.

    ``forgotten``: names of nodes that were removed from the state.
    """

    provider: str = ""
    cache: ClusterCache = ClusterCache()
    forgotten: tuple[str, ...] = ()

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> ClusterSpec:
        """Read the attributes of a cluster's resource."""
        own = {each.name for each in fields(cls)} - {"settings", "lifecycle"}
        values = {name: attributes[name] for name in own if attributes.get(name) is not None}
        settings = {name: value for name, value in attributes.items() if name not in own}
        return from_json(cls, {**values, "settings": settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache(CheckedSection):
    """A training cache on a cluster, of one project or shared by all projects."""

    scope: Literal["project", "team"] = "project"
    """``project``: the cache in ``$BT_PROJECT_CACHE_DIR``. ``team``: the cache in
    ``$BT_TEAM_CACHE_DIR``, which all projects share; it exists even if it isn't declared."""
    cluster: Name | None = None
    """Cluster; optional if there is only one."""
    project: DisplayName | None = None
    """Project; optional if there is only one, not allowed with ``scope: team``."""
    size: Size | None = None
    """Expected size, for example 1TB. A larger cache is only a warning."""
    dir: Text | None = None
    """Absolute directory on the nodes; an existing directory is never deleted."""
    lifecycle: Lifecycle = Lifecycle()
    """Lifecycle settings."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse the project of a team's cache."""
        if self.scope == "team" and self.project is not None:
            raise validation_error(
                "project can't be used with scope: team",
                "Remove project, or remove scope.",
                code="project-of-team-cache",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec(_Attributes, Cache):
    """A training cache with its cluster, and its project unless its scope is ``team``."""

    cluster: str = ""
    lifecycle: Lifecycle = field(default=Lifecycle(), init=False, compare=False)

    @property
    def cluster_address(self) -> Address:
        """Address of its cluster."""
        return Address(Kind.CLUSTER, self.cluster)


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
class ManagedResource(ResourceAttributes):
    """A resource with the attributes of its kind."""

    address: Address
    provider: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class DesiredResource(ManagedResource):
    """A desired resource."""

    depends_on: tuple[Address, ...] = ()
    lifecycle: JobLifecycle = JobLifecycle()
    where: Position | None = field(default=None, compare=False)
