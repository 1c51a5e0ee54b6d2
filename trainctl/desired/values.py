"""What the manifest asks for, complete: resources with every default filled in, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, Position
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json
from trainctl.model.specs.resource import DesiredResource


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """Where a secret's value comes from; never the value.

    ``origin`` is what ``from`` says. ``source`` is its name there: the variable, the path, the name in AWS Secrets Manager, the user
    of a keyring's entry; of a command its program.
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
class StoreLocation:
    """Where something is kept; ``url`` None is its default place. Of a bucket: the server, and the declared secret that opens it."""

    url: str | None = None
    endpoint_url: str | None = None
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointStoreSettings:
    """Where checkpoints are kept, and which. ``url`` None is the data directory of each job's node.

    ``max_rate`` is in bytes a second, ``upload_timeout`` in seconds; ``secret`` names the declared secret that opens a bucket.
    """

    url: str | None = None
    endpoint_url: str | None = None
    secret: str | None = None
    keep_last: int | None = None
    keep_every: int | None = None
    max_rate: int | None = None
    upload_timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The whole wish. ``directory`` is the manifest's; URLs are as written or None for the default place."""

    directory: Path
    resources: Mapping[Address, DesiredResource]
    secrets: Mapping[str, SecretSpec]
    clusters: tuple[str, ...] = ()
    """Their names in the order in which they are declared."""
    mirror: StoreLocation = StoreLocation()
    checkpoints: CheckpointStoreSettings = CheckpointStoreSettings()
    state_url: str | None = None
    manifest_files: tuple[str, ...] = ()
    manifest_digest: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    sources_vary: bool = False
    """Whether expressions say what weights are: then other values may name other sources."""

    def jobs_on(self, cluster: Address) -> list[DesiredResource]:
        """The jobs that run on a cluster."""
        jobs = (
            resource for resource in self.resources.values() if resource.address.kind is Kind.JOB
        )
        return [job for job in jobs if job.job_spec.cluster == cluster.name]


def desired_to_json(desired: DesiredState, addresses: Iterable[Address]) -> dict[str, Any]:
    """Convert to JSON, with those of the resources only that have these addresses, in their order, and no warnings."""
    wanted = frozenset(addresses)
    kept = {key: one for key, one in desired.resources.items() if key in wanted}
    return dict(to_json(replace(desired, resources=kept, warnings=())))


def desired_from_json(value: Mapping[str, Any]) -> DesiredState:
    """Read what ``desired_to_json`` wrote; TypeError, ValueError or AttributeError if it is something else."""
    return from_json(DesiredState, value)
