"""Clusters: where jobs run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from trainctl.manifest.types.base import Lifecycle, Name, Section, Size, Text


class CacheTier(Section):
    """One tier of a cluster's cache of weights."""

    dir: Text | None = None
    """An absolute directory there."""
    size: Size | None = None
    """The most it may hold, for example 2TB."""


class ClusterCache(Section):
    """Where weights are cached on a cluster."""

    node: CacheTier | None = None
    """On each node's own disk."""
    cluster: CacheTier | None = None
    """On a file system that all nodes share."""
    max_rate: Size | None = None
    """How many bytes a second each node takes from the mirror, for example 100MB."""


class Cluster(Section):
    """Machines of one provider. Keys beside these are the provider's own, checked by its schema."""

    model_config = ConfigDict(extra="allow")

    provider: Name
    """The plugin that gives the machines, for example ``local`` or ``ssh``."""
    cache: ClusterCache | None = None
    """Where weights are cached there."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """What one node costs an hour; plans add it up."""
    lifecycle: Lifecycle = Lifecycle()
    """How it answers to changes."""

    @property
    def settings(self) -> dict[str, Any]:
        """The provider's own keys, as written."""
        return dict(self.__pydantic_extra__ or {})
