"""What the manifest asks for, complete: resources with every default filled in, and what goes with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, Position
from trainctl.model.resource import Resource


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """Where a secret's value comes from; never the value. ``origin`` is ``env`` or ``file``, ``name`` its name or path."""

    name: str
    origin: str
    source: str
    version: str | None = None
    redact: bool = True
    where: Position | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CheckpointStore:
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
class Desired:
    """The whole wish. ``directory`` is the manifest's; URLs are as written or None for the default place."""

    directory: Path
    resources: Mapping[Address, Resource]
    secrets: Mapping[str, SecretSpec]
    clusters: tuple[str, ...] = ()
    """Their names in the order in which they are declared."""
    mirror_url: str | None = None
    checkpoints: CheckpointStore = CheckpointStore()
    state_url: str | None = None
    manifest_files: tuple[str, ...] = ()
    manifest_digest: str = ""
    warnings: tuple[Diagnostic, ...] = ()
