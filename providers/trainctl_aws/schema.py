"""JSON Schema of a cluster section of the provider ``aws``."""

from __future__ import annotations

from typing import Any

from trainctl.base.json import JsonObject
from trainctl_aws.market.catalog import ACCELERATORS

_ID = r"^{}-[0-9a-f]{{8,17}}$(?!\n)"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_+=,.@-]*$(?!\n)"


def _text(pattern: str, description: str, **more: Any) -> JsonObject:
    return {"type": "string", "pattern": pattern, "description": description, **more}


def _whole(description: str, minimum: int = 1, **more: Any) -> JsonObject:
    return {"type": "integer", "minimum": minimum, "description": description, **more}


def _list(items: JsonObject, description: str) -> JsonObject:
    return {"type": "array", "items": items, "minItems": 1, "description": description}


def _duration(description: str, **more: Any) -> JsonObject:
    pattern = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$(?!\n)"
    forms = [{"type": "string", "pattern": pattern}, {"type": "integer", "minimum": 0}]
    return {"anyOf": forms, "description": description, **more}


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["region"],
        "properties": {**_MACHINES, **_NETWORK, **_LIMITS},
    }


_MACHINES: JsonObject = {
    "region": _text(r"^[a-z]{2}(-[a-z]+)+-[0-9]+$(?!\n)", "Region, such as us-east-1."),
    "zones": _list(
        _text(r"^[a-z0-9-]+[a-z]$(?!\n)", "Availability zone."),
        "Availability zones in order of preference; default: all of the region.",
    ),
    "instance_types": _list(
        _text(r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$(?!\n)", "Instance type."),
        "Instance types in order of preference.",
    ),
    "accelerator": {
        "enum": list(ACCELERATORS),
        "description": "GPU, as an alternative to instance_types; the cheapest type comes first.",
    },
    "count": _whole("Number of GPUs per node, with accelerator; default: 8, or all that a machine can have."),
    "nodes": _whole("Number of machines.", default=1),
    "ami": _text(
        r"^(ami-[0-9a-f]{8,17}|ssm:/[A-Za-z0-9_./-]+)$(?!\n)",
        "Image: its ID, or ssm:/PARAMETER; default: the current deep-learning base image with Ubuntu 22.04.",
    ),
    "user": _text(r"^[a-z_][a-z0-9_-]*$(?!\n)", "Login name of the image; default: ubuntu.", default="ubuntu"),
    "availability_model": {
        "enum": ["on_demand", "spot"],
        "default": "on_demand",
        "description": "on_demand, or cheaper spot instances that AWS can end.",
    },
    "capacity_reservation": _text(_ID.format("cr"), "ID of a capacity reservation to use."),
    "capacity_block": _text(_ID.format("cr"), "ID of a capacity block for ML to use."),
    "volume": _whole("Size of the root volume in GB.", minimum=8, default=200),
    "placement_group": {
        "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _NAME}],
        "description": "Place the machines close to each other: true for a group of its own, or the name of a group; default: true with efa, unless capacity is reserved.",
    },
    "efa": {
        "type": "boolean",
        "default": False,
        "description": "Attach Elastic Fabric Adapters, for training on several nodes.",
    },
    "instance_profile": _text(_NAME, "Name of the instance profile whose role the machines get; default: none."),
    "tags": {
        "type": "object",
        "propertyNames": {"pattern": r"^(?!aws:|trainctl:|Name$)[A-Za-z0-9 +=._:/@-]{1,128}$(?!\n)"},
        "additionalProperties": {"type": "string", "maxLength": 256},
        "description": "More tags of machines and volumes.",
    },
}  # fmt: skip
_SUBNET = _text(_ID.format("subnet"), "Subnet.")
_NETWORK: JsonObject = {
    "subnet": {
        "anyOf": [_SUBNET, _list(_SUBNET, "Subnets.")],
        "description": "Subnet, or a list with one for each zone; default: those of the default VPC.",
    },
    "security_groups": _list(
        _text(_ID.format("sg"), "Security group."),
        "Security groups of the machines; default: a group of the cluster that allows ssh from ssh_from.",
    ),
    "ssh_from": _list(
        _text(r"^[0-9a-fA-F.:]+/[0-9]{1,3}$(?!\n)", "Address range."),
        "Address ranges that may connect to port 22, such as 203.0.113.7/32.",
    ),
    "address": {
        "enum": ["public", "private"],
        "default": "public",
        "description": "Address that trainctl connects to; private machines have no public address.",
    },
    "jump": _text(
        r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,+\[\]-]*$(?!\n)",
        "Jump hosts, as for ssh -J: user@host:port, separated by commas.",
    ),
    "port": _whole("Port of sshd.", maximum=65535, default=22),
}
_LIMITS: JsonObject = {
    "max_nodes": _whole("Most machines of this cluster that may exist at the same time; default: any number."),
    "max_price_per_hour": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Highest price per hour of one machine in USD; offers above it are not tried.",
    },
    "capacity_timeout": _duration("How long to try all offers again while there is no capacity.", default="0s"),
    "boot_timeout": _duration("Time for a machine to boot; it turns itself off if trainctl has not logged in by then.", default="15m"),
    "idle_timeout": _duration("Time without runs after which a machine turns itself off.", default="30m"),
}  # fmt: skip
