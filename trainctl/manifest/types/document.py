"""The whole manifest, and the projects that jobs and caches belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainctl.manifest.types.base import (
    JobName,
    Labels,
    Lifecycle,
    ManifestSection,
    Name,
    Text,
    validation_error,
)
from trainctl.manifest.types.cloud import Region
from trainctl.manifest.types.cluster import Cache, Cluster
from trainctl.manifest.types.job import Job
from trainctl.manifest.types.location import CheckpointsLocation, Location
from trainctl.manifest.types.weights import DeclaredWeights

Variable = str | int | float | bool
VariableName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_-]{0,127}$")]


Origin = Literal["env", "file", "command", "aws-secrets-manager", "keyring"]

_KEYS: Mapping[Origin, tuple[str, ...]] = {
    "env": ("name",),
    "file": ("path",),
    "command": ("command",),
    "aws-secrets-manager": ("name", "region", "key"),
    "keyring": ("name", "service"),
}
"""The keys that go with each origin."""
_NEEDED: Mapping[Origin, str] = {"file": "path", "command": "command"}


class Secret(ManifestSection):
    """A value that jobs and sources refer to by name."""

    origin: Origin = Field(alias="from")
    """Where it comes from: ``env``, a variable of the operator's environment; ``file``; ``command``, what a program prints; ``aws-secrets-manager``; ``keyring``, that of the operating system."""
    name: Text | None = None
    """With ``env``: the variable's name. With ``aws-secrets-manager``: the name or ARN there. With ``keyring``: the user of the entry. The secret's own if it is left out."""
    path: Text | None = None
    """With ``file``: the file's path, relative to the manifest and in its directory; elsewhere only where the operator's trust file allows it."""
    command: Annotated[list[Text], Field(min_length=1)] | None = None
    """With ``command``: a program and its arguments, run without a shell in the manifest's directory, only where the operator's trust file allows it."""
    region: Region | None = None
    """With ``aws-secrets-manager``: its region, where it is not the environment's."""
    key: Text | None = None
    """With ``aws-secrets-manager``: the member that is meant, of a secret that is a JSON object."""
    service: Text | None = None
    """With ``keyring``: the service of the entry; ``trainctl`` if it is left out."""
    version: Text | int | None = None
    """Anything; changing it makes a rotation visible in the plan."""
    redact: bool = True
    """Whether the value is removed from everything shown. Values shorter than 8 characters need ``false``."""
    persist: bool = False
    """Whether a run's node keeps the value on its disk until the run's first command begins, so that a run that waits there goes on after a reboot without being given it again. All secrets of the run must say so."""

    @model_validator(mode="after")
    def _keys_fit_origin(self) -> Secret:
        needed = _NEEDED.get(self.origin)
        if needed is not None and getattr(self, needed) is None:
            raise validation_error(
                f"'from: {self.origin}' needs {needed!r}",
                f"Add {needed}: … beside it.",
                code="missing-key",
            )
        every = dict.fromkeys(key for keys in _KEYS.values() for key in keys)
        for other in every.keys() - set(_KEYS[self.origin]):
            if getattr(self, other) is not None:
                raise validation_error(
                    f"'from: {self.origin}' has no {other!r}",
                    f"Remove {other!r}.",
                    code="redundant-key",
                )
        return self


class Project(ManifestSection):
    """One of several projects; its name is its key."""

    description: str | None = None
    """One line for people."""
    labels: Labels = Field(default_factory=dict)
    """Free text by name, for people and policies."""
    lifecycle: Lifecycle = Lifecycle()
    """How it answers to changes."""


class SingleProject(Project):
    """The one project of a manifest."""

    name: Name | None = None
    """Its name; the directory's if it is left out."""


class Manifest(ManifestSection):
    """What a team's training needs: projects, machines, weights, caches and jobs."""

    version: Literal[1] = 1
    """The version of this form."""
    project: SingleProject | None = None
    """The one project; named after the directory if nothing is said."""
    projects: dict[Name, Project] = Field(default_factory=dict)
    """Several projects by name, in place of ``project``."""
    vars: dict[VariableName, Variable] = Field(default_factory=dict)
    """Values for ``${{ var.NAME }}``; ``--var NAME=VALUE`` overrides them."""
    secrets: dict[Name, Secret] = Field(default_factory=dict)
    """Where secret values come from."""
    mirror: Location | None = None
    """Where all sources are copied to once."""
    checkpoints: CheckpointsLocation | None = None
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
