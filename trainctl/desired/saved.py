"""Desired resources as JSON, for saved plans. Positions and warnings are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainctl.desired.values import CheckpointStore, Desired, Kept, SecretSpec
from trainctl.model.address import Address
from trainctl.model.json_form import from_json, to_json
from trainctl.model.resource import Resource


def desired_to_json(desired: Desired, addresses: Iterable[Address]) -> dict[str, Any]:
    """Convert to JSON, with those of the resources only that have these addresses, in their order."""
    wanted = frozenset(addresses)
    return {
        "directory": str(desired.directory),
        "clusters": list(desired.clusters),
        "mirror": to_json(desired.mirror),
        "checkpoints": to_json(desired.checkpoints),
        "state_url": desired.state_url,
        "manifest_files": list(desired.manifest_files),
        "manifest_digest": desired.manifest_digest,
        "sources_vary": desired.sources_vary,
        "secrets": [to_json(secret) for _, secret in sorted(desired.secrets.items())],
        "resources": [to_json(one) for key, one in desired.resources.items() if key in wanted],
    }


def desired_from_json(value: Mapping[str, Any]) -> Desired:
    """Read what ``desired_to_json`` wrote; KeyError, TypeError or ValueError if it is something else."""
    secrets = [from_json(SecretSpec, one) for one in value["secrets"]]
    resources = [from_json(Resource, one) for one in value["resources"]]
    return Desired(
        directory=Path(value["directory"]),
        resources={one.address: one for one in resources},
        secrets={one.name: one for one in secrets},
        clusters=tuple(value["clusters"]),
        mirror=from_json(Kept, value["mirror"]),
        checkpoints=from_json(CheckpointStore, value["checkpoints"]),
        state_url=value["state_url"],
        manifest_files=tuple(value["manifest_files"]),
        manifest_digest=value["manifest_digest"],
        sources_vary=value["sources_vary"],
    )
