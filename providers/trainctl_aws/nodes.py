"""Nodes and machines as trainctl sees them, made of settings and instances."""

from __future__ import annotations

from typing import Any

from trainctl.plugin_api.machines import Machine
from trainctl.plugin_api.provider import Node
from trainctl_aws.market.catalog import TYPES
from trainctl_aws.settings import AwsSettings
from trainctl_aws.tags import (
    CLUSTER,
    HOST_KEY,
    KEY,
    LINEAGE,
    NODE,
    PRICE,
    Instance,
    state_of,
    tags_of,
)


def planned_nodes(cluster: str, settings: AwsSettings) -> list[Node]:
    """Return the nodes of the settings, with the first type's price and the GPUs that all types have."""
    types = [TYPES.get(name) for name in settings.instance_types]
    counts = [known.gpus if known else -1 for known in types]
    return [
        Node(
            cluster=cluster,
            name=f"{cluster}-{number}",
            address="",
            root="",
            data="",
            python="",
            gpus=None if -1 in counts else min(counts, default=None),
            # Equal details would mean the same machine.
            details={"region": settings.region, "node": f"{cluster}-{number}"},
            price_per_hour=types[0].price if types and types[0] else None,
        )
        for number in range(settings.nodes)
    ]


def node_of(settings: AwsSettings, instance: Instance) -> Node:
    """Return the node of an instance, without the paths on it."""
    tags = tags_of(instance)
    address = instance.get("PublicIpAddress" if settings.public else "PrivateIpAddress") or ""
    details: dict[str, Any] = {
        "region": settings.region,
        "node": tags.get(NODE, ""),
        "instance": instance["InstanceId"],
        "type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "lineage": tags.get(LINEAGE, ""),
        "user": settings.user,
        "port": settings.port,
        "host_key": tags.get(HOST_KEY, ""),
        **({"jump": settings.jump} if settings.jump else {}),
        "notice": {"kind": "imds"},
    }
    shutdown = ("shutdown", "-h", "now")
    known = TYPES.get(instance["InstanceType"])
    return Node(
        cluster=tags.get(CLUSTER, ""),
        name=tags.get(NODE, ""),
        address=address,
        root="",
        data="",
        python="",
        key=tags.get(KEY, ""),
        gpus=known.gpus if known else None,
        details=details,
        price_per_hour=_number(tags.get(PRICE, "")),
        shutdown=shutdown if settings.user == "root" else ("sudo", "-n", *shutdown),
        idle_timeout=settings.idle_timeout,
    )


def machine_of(instance: Instance, region: str) -> Machine:
    """Return an instance as listings without a state show it."""
    tags = tags_of(instance)
    return Machine(
        id=instance["InstanceId"],
        cluster=tags.get(CLUSTER, ""),
        node=tags.get(NODE, ""),
        lineage=tags.get(LINEAGE, ""),
        key=tags.get(KEY, ""),
        state=state_of(instance),
        type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        launched_at=instance["LaunchTime"].timestamp(),
        price_per_hour=_number(tags.get(PRICE, "")),
        details={"region": region},
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
