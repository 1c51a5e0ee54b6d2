"""Clusters: where jobs run; and the training caches there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainctl.manifest.types.base import (
    Lifecycle,
    ManifestSection,
    Name,
    Size,
    Text,
    validation_error,
)


class CacheTier(ManifestSection):
    """One tier of a cluster's cache of weights."""

    dir: Text | None = None
    """An absolute directory there."""
    size: Size | None = None
    """The most it may hold, for example 2TB."""


class ClusterCache(ManifestSection):
    """Where weights are cached on a cluster."""

    node: CacheTier | None = None
    """On each node's own disk."""
    cluster: CacheTier | None = None
    """On a file system that all nodes share."""
    max_rate: Size | None = None
    """How many bytes a second each node takes from the mirror, for example 100MB."""


class Cluster(ManifestSection):
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


class Cache(ManifestSection):
    """A training cache on a cluster: a project's own, or the one that all projects there share."""

    scope: Literal["project", "team"] = "project"
    """``project``: the cache that a project's jobs find at ``$BT_PROJECT_CACHE_DIR``. ``team``: the one that all projects
    on the cluster find at ``$BT_TEAM_CACHE_DIR``; there is one without being declared, in trainctl's own place."""
    cluster: Name | None = None
    """Which cluster; may be left out where there is only one."""
    project: Name | None = None
    """Which project; may be left out where there is only one, and must be with ``scope: team``."""
    size: Size | None = None
    """How much it is meant to hold, for example 1TB. What is more is a warning; jobs go on."""
    dir: Text | None = None
    """An absolute directory on the nodes, in place of trainctl's own. One that was there before is never removed."""
    lifecycle: Lifecycle = Lifecycle()
    """How it answers to changes."""

    @model_validator(mode="after")
    def _team_is_no_project(self) -> Cache:
        if self.scope == "team" and self.project is not None:
            raise validation_error(
                "a team's cache is no project's",
                "Leave project out, or scope.",
                code="project-of-team-cache",
            )
        return self
