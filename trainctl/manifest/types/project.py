"""Projects: what jobs and caches belong to."""

from __future__ import annotations

from pydantic import Field

from trainctl.manifest.types.base import Labels, Lifecycle, Name, Section


class Project(Section):
    """One of several projects; its name is its key."""

    description: str | None = None
    """One line for people."""
    labels: Labels = Field(default_factory=dict)
    """Free text by name, for people and policies."""
    lifecycle: Lifecycle = Lifecycle()
    """How it answers to changes."""


class OnlyProject(Project):
    """The one project of a manifest."""

    name: Name | None = None
    """Its name; the directory's if it is left out."""
