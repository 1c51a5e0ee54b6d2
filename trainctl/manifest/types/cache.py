"""Training caches: policy for the read-write caches of a cluster."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainctl.manifest.types.base import Lifecycle, Name, Section, Size, Text, wrong


class Cache(Section):
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
            raise wrong(
                "a team's cache is no project's",
                "Leave project out, or scope.",
                code="project-of-team-cache",
            )
        return self
