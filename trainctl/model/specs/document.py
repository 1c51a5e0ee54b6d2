"""The manifest as a whole, with projects, secrets, and resources that were renamed or exist already."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Literal

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.address import Address
from trainctl.model.specs.auth import Region
from trainctl.model.specs.checks import (
    CheckedSection,
    DisplayName,
    JobName,
    Labels,
    Lifecycle,
    Name,
    ProjectName,
    SomeTexts,
    Text,
    check,
    limits,
    listed,
    named,
    validation_error,
)
from trainctl.model.specs.job_spec import Job
from trainctl.model.specs.location import CheckpointsLocation, Location, StateLocation, Url
from trainctl.model.specs.resource import Cache, Cluster
from trainctl.model.specs.weights import DeclaredWeights

Variable = str | int | float | bool
VariableName = Annotated[str, limits(pattern="^[A-Za-z_][A-Za-z0-9_-]{0,127}$")]


Origin = Literal["env", "file", "command", "aws-secrets-manager", "keyring"]

ORIGIN_KEYS: Mapping[str, tuple[str, ...]] = {
    "env": ("name",),
    "file": ("path",),
    "command": ("command",),
    "aws-secrets-manager": ("name", "region", "key"),
    "keyring": ("name", "service"),
}
"""Keys of each origin, that of the place of the value first."""
_NEEDED: Mapping[Origin, str] = {"file": "path", "command": "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(CheckedSection):
    """A secret value that jobs and sources refer to by name."""

    origin: Origin = field(metadata=named("from"))
    """Source of the value: ``env``, an environment variable of the client; ``file``;
    ``command``, the output of a program; ``aws-secrets-manager``; ``keyring`` of the operating
    system."""
    name: Text | None = None
    """Name of the variable (``env``), name or ARN (``aws-secrets-manager``) or user of the entry
    (``keyring``); default: the name of the secret."""
    path: Text | None = None
    """With ``file``: path relative to the manifest, in its directory; other paths need permission
    in the trust file."""
    command: SomeTexts | None = None
    """With ``command``: a program and its arguments, run without a shell in the manifest's
    directory; needs permission in the trust file."""
    region: Region | None = None
    """With ``aws-secrets-manager``: region; default: that of the environment."""
    key: Text | None = None
    """With ``aws-secrets-manager``: key in a secret that is a JSON object."""
    service: Text | None = None
    """With ``keyring``: service of the entry; default: ``trainctl``."""
    version: Text | int | None = None
    """Any value; change it to make a rotation visible in the plan."""
    redact: bool = True
    """Redact the value in all output. Must be ``false`` for values shorter than 8 characters."""
    persist: bool = False
    """Keep the value on the node's disk until the run's first command starts, so that a waiting
    run survives a reboot. Must be set for all secrets of the run."""

    def check_keys(self, written: Set[str]) -> None:
        """Require the keys of the origin, and no others."""
        needed = _NEEDED.get(self.origin)
        if needed is not None and getattr(self, needed) is None:
            raise validation_error(
                f"'from: {self.origin}' requires {needed!r}",
                f"Add {needed}: … next to it.",
                code="missing-key",
            )
        every = dict.fromkeys(key for keys in ORIGIN_KEYS.values() for key in keys)
        for other in every.keys() - set(ORIGIN_KEYS[self.origin]):
            if getattr(self, other) is not None:
                raise validation_error(
                    f"{other!r} can't be used with 'from: {self.origin}'",
                    f"Remove {other!r}.",
                    code="redundant-key",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(CheckedSection):
    """One of several projects, by name."""

    name: DisplayName | None = None
    """Name as people write it, for ``$BT_TRAINING_PROJECT_NAME``; default: that of the section."""
    description: str | None = None
    """Description, one line."""
    labels: Labels = field(default_factory=dict)
    """Labels by name."""
    lifecycle: Lifecycle = Lifecycle()
    """Lifecycle settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleProject(Project):
    """The only project of a manifest."""

    name: DisplayName | None = None
    """Name, any printable text; default: the name of the directory."""


def _address(text: str) -> str:
    try:
        return str(Address.parse(text))
    except ValueError as error:
        raise validation_error(
            str(error), "For example: job.sft.", code="invalid-address"
        ) from None


AddressText = Annotated[str, check(_address, minLength=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedResource(CheckedSection):
    """A renamed resource; it keeps its runs, checkpoints and caches."""

    before: AddressText = field(metadata=named("from"))
    """Old address, for example ``job.sft``; it must not be declared any more."""
    to: AddressText
    """New address, of the same kind: project, weights, cache or job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedResource(CheckedSection):
    """A resource that is no longer declared."""

    before: AddressText = field(metadata=named("from"))
    """Its address, for example ``cluster.lab``."""
    destroy: bool = True
    """Destroy it; ``false`` removes it from the state only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun(CheckedSection):
    """An existing run to record in the state, unless its job is there."""

    to: AddressText
    """Address of a declared job."""
    id: Text
    """``CLUSTER/NODE/RUN``: the first node, and the ID of the run or the name of its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(CheckedSection):
    """Projects, clusters, weights, caches and jobs."""

    version: Literal[1] = 1
    """Version of the manifest format."""
    extends: Text | None = None
    """File of shared sections, whose names the manifest's own ones override: a path in this
    repository, or ``git::https://HOST/REPOSITORY.git//FILE?ref=COMMIT``."""
    project: SingleProject | None = None
    """The only project; default: one named after the directory."""
    projects: dict[ProjectName, Project] = field(default_factory=dict)
    """Several projects by name, instead of ``project``."""
    vars: dict[VariableName, Variable] = field(default_factory=dict)
    """Values of ``${{ var.NAME }}``; ``--var NAME=VALUE`` and the environment variable ``TRAINCTL_VAR_NAME`` override them."""
    secrets: dict[Name, Secret] = field(default_factory=dict)
    """Secrets and the sources of their values."""
    mirror: Location | None = None
    """Location of the mirror; default: a directory of this machine."""
    checkpoints: CheckpointsLocation | None = None
    """Location of checkpoints; default: the data directory of each job's node."""
    state: StateLocation | None = None
    """Location of the state; default: ``.trainctl/state`` next to the manifest."""
    reuse_from: Annotated[tuple[Url, ...], listed()] = field(default_factory=tuple)
    """URLs of other states whose completed runs are reused instead of training the same again, in
    addition to the environments of this state."""
    clusters: dict[Name, Cluster] = field(default_factory=dict)
    """Clusters that jobs run on; default: one named ``local`` on this machine."""
    weights: dict[Name, DeclaredWeights] = field(default_factory=dict)
    """Models and datasets that jobs refer to by name."""
    caches: dict[Name, Cache] = field(default_factory=dict)
    """Settings of training caches."""
    jobs: dict[JobName, Job] = field(default_factory=dict)
    """Training jobs."""
    moved: Annotated[tuple[MovedResource, ...], listed()] = field(default_factory=tuple)
    """Resources that were renamed."""
    removed: Annotated[tuple[RemovedResource, ...], listed()] = field(default_factory=tuple)
    """Resources that are no longer declared, and whether to destroy them."""
    imports: Annotated[tuple[ImportedRun, ...], listed()] = field(
        default_factory=tuple, metadata=named("import")
    )
    """Existing runs to record in the state."""
