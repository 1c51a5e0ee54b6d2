"""Clusters: where jobs run; and the training caches there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainctl.manifest.types.base import ManifestSection
from trainctl.model.specs.checks import DisplayName, Name, Size, Text, validation_error
from trainctl.model.specs.resource import ClusterCache, Lifecycle


class Cluster(ManifestSection):
    """Nodes of one provider, with the provider's own settings."""

    model_config = ConfigDict(extra="allow")

    provider: Name
    """Provider plugin, for example ``local`` or ``ssh``."""
    cache: ClusterCache | None = None
    """Weight caches of the cluster."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Cost of one node per hour, for the cost estimate of plans."""
    lifecycle: Lifecycle = Lifecycle()
    """Lifecycle settings."""

    @property
    def settings(self) -> dict[str, Any]:
        """The provider's own keys, as written."""
        return dict(self.__pydantic_extra__ or {})


class Cache(ManifestSection):
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

    @model_validator(mode="after")
    def _team_is_no_project(self) -> Cache:
        if self.scope == "team" and self.project is not None:
            raise validation_error(
                "project can't be used with scope: team",
                "Remove project, or remove scope.",
                code="project-of-team-cache",
            )
        return self
