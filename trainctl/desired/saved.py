"""A wish as JSON: what a saved plan keeps of its manifest. Positions and warnings stay behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainctl.desired.values import CheckpointStore, Desired, Kept, SecretSpec
from trainctl.model.address import Address
from trainctl.model.resource import Lifecycle, Resource


def desired_to_json(desired: Desired, addresses: Iterable[Address]) -> dict[str, Any]:
    """The wish, with those of its resources only that have these addresses, in its order."""
    wanted = frozenset(addresses)
    resources = [one for address, one in desired.resources.items() if address in wanted]
    return {
        "directory": str(desired.directory),
        "clusters": list(desired.clusters),
        "mirror": asdict(desired.mirror),
        "checkpoints": asdict(desired.checkpoints),
        "state_url": desired.state_url,
        "manifest_files": list(desired.manifest_files),
        "manifest_digest": desired.manifest_digest,
        "sources_vary": desired.sources_vary,
        "secrets": [secret.to_json() for _, secret in sorted(desired.secrets.items())],
        "resources": [_resource(resource) for resource in resources],
    }


def desired_from_json(value: Mapping[str, Any]) -> Desired:
    """Read what ``desired_to_json`` wrote; KeyError, TypeError or ValueError where it is something else."""
    secrets = [SecretSpec.from_json(one) for one in value["secrets"]]
    resources = [_read_resource(one) for one in value["resources"]]
    return Desired(
        directory=Path(value["directory"]),
        resources={one.address: one for one in resources},
        secrets={one.name: one for one in secrets},
        clusters=tuple(value.get("clusters", ())),
        mirror=Kept(**value["mirror"]),
        checkpoints=CheckpointStore(**value["checkpoints"]),
        state_url=value["state_url"],
        manifest_files=tuple(value["manifest_files"]),
        manifest_digest=value["manifest_digest"],
        sources_vary=value.get("sources_vary", True),
    )


def lifecycle_from_json(value: Mapping[str, Any]) -> Lifecycle:
    """Read what ``Lifecycle.to_json`` wrote."""
    return Lifecycle(
        prevent_destroy=value["prevent_destroy"],
        ignore_changes=tuple(value["ignore_changes"]),
        rerun_on=tuple(value["rerun_on"]),
    )


def _resource(resource: Resource) -> dict[str, Any]:
    return {
        "address": str(resource.address),
        "provider": resource.provider,
        "attributes": resource.attributes,
        "depends_on": [str(one) for one in resource.depends_on],
        "lifecycle": resource.lifecycle.to_json(),
    }


def _read_resource(value: Mapping[str, Any]) -> Resource:
    return Resource(
        address=Address.parse(value["address"]),
        provider=value["provider"],
        attributes=value["attributes"],
        depends_on=tuple(Address.parse(one) for one in value["depends_on"]),
        lifecycle=lifecycle_from_json(value["lifecycle"]),
    )
