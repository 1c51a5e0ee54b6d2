"""The desired state: resources with all defaults filled in, secrets and locations."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.manifest.files import ExtendedFile
from trainctl.model.address import Address, Kind, external, of_kind
from trainctl.model.diagnostics import Diagnostic, Position
from trainctl.model.json_codec import OMIT_EMPTY, to_json
from trainctl.model.specs.location import CheckpointsLocation, StoreLocation
from trainctl.model.specs.resource import DesiredResource

VARIABLE_PREFIX = "TRAINCTL_VAR_"
"""Prefix of environment variables that set variables of the manifest."""
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """Source of a secret's value; never the value.

    ``origin`` is the value of ``from``. ``source`` is the variable, path, name in AWS Secrets Manager, user of the
    keyring entry, or program of the command.
    """

    name: str
    origin: str
    source: str
    version: str | None = None
    redact: bool = True
    where: Position | None = field(default=None, compare=False)
    command: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    region: str | None = field(default=None, metadata=OMIT_EMPTY)
    key: str | None = field(default=None, metadata=OMIT_EMPTY)
    service: str | None = field(default=None, metadata=OMIT_EMPTY)
    persist: bool = field(default=False, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class DesiredMoves:
    """Old and new addresses of renamed resources, undeclared ones and whether to destroy them, runs to import."""

    renamed: Mapping[Address, Address] = field(default_factory=dict)
    removed: Mapping[Address, bool] = field(default_factory=dict)
    imported: Mapping[Address, str] = field(default_factory=dict)
    """``CLUSTER/NODE/RUN`` by the address of the job."""


@dataclass(frozen=True)
class DesiredState:
    """The desired state; ``directory`` is that of the manifest."""

    directory: Path
    resources: Mapping[Address, DesiredResource]
    secrets: Mapping[str, SecretSpec]
    clusters: tuple[str, ...] = ()
    """Names in the order of declaration."""
    mirror: StoreLocation = StoreLocation()
    checkpoints: CheckpointsLocation = CheckpointsLocation()
    state: StoreLocation = StoreLocation()
    reuse_from: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    """URLs of other states with runs to reuse."""
    manifest_files: tuple[str, ...] = ()
    manifest_digest: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    extended: ExtendedFile | None = field(default=None, metadata=OMIT_EMPTY)
    moves: DesiredMoves = DesiredMoves()
    sources_vary: bool = False
    """Whether sources of weights contain expressions, so that variables change them."""
    digests: Mapping[Address, str] = field(default_factory=dict, compare=False)
    """Digests of the resources, for the memory of manifests."""

    @cached_property
    def external(self) -> Mapping[Address, DesiredResource]:
        """The resources that exist outside of the state."""
        return external(self.resources)

    @property
    def state_url(self) -> str | None:
        """URL of the state; None is the default location."""
        return self.state.url

    def jobs_on(self, cluster: Address) -> list[DesiredResource]:
        """The jobs of a cluster."""
        return [job for job in self.jobs() if job.job_spec.cluster == cluster.name]

    def jobs(self) -> list[DesiredResource]:
        """All jobs."""
        return of_kind(self.external, Kind.JOB)


@dataclass(frozen=True, slots=True)
class JobOverrides:
    """Values of ``--set``, as typed, by dotted path in the section of a job.

    ``jobs``: names of the jobs to change; without any, the only job of the manifest.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()


def desired_to_json(desired: DesiredState, addresses: Iterable[Address]) -> dict[str, Any]:
    """Convert to JSON, with only the resources of these addresses and no warnings."""
    included = frozenset(addresses)
    resources = {key: item for key, item in desired.resources.items() if key in included}
    return dict(to_json(replace(desired, resources=resources, warnings=())))


def find_cycle(edges: Mapping[T, Iterable[T]]) -> list[T]:
    """Return a cycle with the same node first and last; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        cycle: list[T] = error.args[1][:0:-1]
        first = cycle.index(next(node for node in edges if node in cycle))
        return [*cycle[first:], *cycle[: first + 1]]
    return []
