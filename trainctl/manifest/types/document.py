"""The whole manifest, and the projects that jobs and caches belong to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainctl.manifest.types.base import JobName, Labels, Lifecycle, Name, Section
from trainctl.manifest.types.cluster import Cache, Cluster
from trainctl.manifest.types.job import Job
from trainctl.manifest.types.location import Checkpoints, Location
from trainctl.manifest.types.secret import Secret
from trainctl.manifest.types.weights import DeclaredWeights

Variable = str | int | float | bool
VariableName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_-]{0,127}$")]


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


class Manifest(Section):
    """What a team's training needs: projects, machines, weights, caches and jobs."""

    version: Literal[1] = 1
    """The version of this form."""
    project: OnlyProject | None = None
    """The one project; named after the directory if nothing is said."""
    projects: dict[Name, Project] = Field(default_factory=dict)
    """Several projects by name, in place of ``project``."""
    vars: dict[VariableName, Variable] = Field(default_factory=dict)
    """Values for ``${{ var.NAME }}``; ``--var NAME=VALUE`` overrides them."""
    secrets: dict[Name, Secret] = Field(default_factory=dict)
    """Where secret values come from."""
    mirror: Location | None = None
    """Where all sources are copied to once."""
    checkpoints: Checkpoints | None = None
    """Where checkpoints are kept; in the data directory of each job's node if it is left out."""
    state: Location | None = None
    """Where the state is kept; ``.trainctl/state`` beside the manifest if it is left out."""
    clusters: dict[Name, Cluster] = Field(default_factory=dict)
    """Where jobs run; one called ``local``, on this machine, if there is none."""
    weights: dict[Name, DeclaredWeights] = Field(default_factory=dict)
    """Sources that jobs refer to by name."""
    caches: dict[Name, Cache] = Field(default_factory=dict)
    """Policy for training caches."""
    jobs: dict[JobName, Job] = Field(default_factory=dict)
    """Training jobs."""
