"""Settings of a cluster: JSON Schema, values, and checks beyond the schema."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass
from trainctl.plugin_api.provider import ClusterSettings, SettingsProblem
from trainctl_aws.catalog import ACCELERATORS, TYPES, counts_of, types_with
from trainctl_ssh.hosts import HOST
from trainctl_ssh.machines import (
    MachineSettings,
    duration_setting,
    setting,
    text_setting,
    whole_setting,
)

DEFAULT_IMAGE = (
    "ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)


_ID = r"^{}-[0-9a-f]{{8,17}}$(?!\n)"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_+=,.@-]*$(?!\n)"
_SUBNET: JsonObject = {"type": "string", "pattern": _ID.format("subnet")}


def _list(pattern: str, description: str) -> Any:
    items = {"type": "string", "pattern": pattern}
    return setting((), type="array", items=items, minItems=1, description=description)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings(MachineSettings):
    """Settings of one cluster by their keys in the manifest; durations in seconds."""

    region: str = text_setting(r"^[a-z]{2}(-[a-z]+)+-[0-9]+$(?!\n)", "Region, such as us-east-1.")
    zones: Sequence[str] = _list(
        r"^[a-z0-9-]+[a-z]$(?!\n)",
        "Availability zones in order of preference; default: all of the region.",
    )
    instance_types: Sequence[str] = _list(
        r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$(?!\n)",
        "Instance types in order of preference.",
    )
    accelerator: str = setting(
        "",
        enum=list(ACCELERATORS),
        description="GPU, as an alternative to instance_types; the cheapest type comes first.",
    )
    count: int = whole_setting(
        "Number of GPUs per node, with accelerator; default: 8, or all that a machine can have."
    )
    ami: str = text_setting(
        r"^(ami-[0-9a-f]{8,17}|ssm:/[A-Za-z0-9_./-]+)$(?!\n)",
        "Image: its ID, or ssm:/PARAMETER; default: the current deep-learning base image with Ubuntu 22.04.",
    )
    user: str = text_setting(
        r"^[a-z_][a-z0-9_-]*$(?!\n)", "Login name of the image; default: ubuntu.", default="ubuntu"
    )
    availability_model: str = setting(
        "on_demand",
        enum=["on_demand", "spot"],
        default="on_demand",
        description="on_demand, or cheaper spot instances that AWS can end.",
    )
    capacity_reservation: str = text_setting(
        _ID.format("cr"), "ID of a capacity reservation to use."
    )
    capacity_block: str = text_setting(_ID.format("cr"), "ID of a capacity block for ML to use.")
    volume: int = whole_setting("Size of the root volume in GB.", minimum=8, default=200)
    placement_group: str | bool = setting(
        False,
        anyOf=[{"type": "boolean"}, {"type": "string", "pattern": _NAME}],
        description="Place the machines close to each other: true for a group of its own, or the name of a group; default: true with efa, unless capacity is reserved.",
    )
    efa: bool = setting(
        False,
        type="boolean",
        default=False,
        description="Attach Elastic Fabric Adapters, for training on several nodes.",
    )
    instance_profile: str = text_setting(
        _NAME, "Name of the instance profile whose role the machines get; default: none."
    )
    tags: Mapping[str, str] = setting(
        {},
        type="object",
        propertyNames={"pattern": r"^(?!aws:|trainctl:|Name$)[A-Za-z0-9 +=._:/@-]{1,128}$(?!\n)"},
        additionalProperties={"type": "string", "maxLength": 256},
        description="More tags of machines and volumes.",
    )
    subnet: Sequence[str] = setting(
        (),
        anyOf=[_SUBNET, {"type": "array", "items": _SUBNET, "minItems": 1}],
        description="Subnet, or a list with one for each zone; default: those of the default VPC.",
    )
    security_groups: Sequence[str] = _list(
        _ID.format("sg"),
        "Security groups of the machines; default: a group of the cluster that allows ssh from ssh_from.",
    )
    ssh_from: Sequence[str] = _list(
        r"^[0-9a-fA-F.:]+/[0-9]{1,3}$(?!\n)",
        "Address ranges that may connect to port 22, such as 203.0.113.7/32.",
    )
    address: str = setting(
        "public",
        enum=["public", "private"],
        default="public",
        description="Address that trainctl connects to; private machines have no public address.",
    )
    jump: str = setting("", **HOST["properties"]["jump"])
    port: int = setting(22, **HOST["properties"]["port"], default=22)
    max_nodes: int = whole_setting(
        "Most machines of this cluster that may exist at the same time; default: any number."
    )
    max_price_per_hour: float | None = setting(
        None,
        type="number",
        exclusiveMinimum=0,
        description="Highest price per hour of one machine in USD; offers above it are not tried.",
    )
    capacity_timeout: float = duration_setting(
        "How long to try all offers again while there is no capacity.", "0s"
    )

    @property
    def spot(self) -> bool:
        """Whether machines are spot instances."""
        return self.availability_model == "spot"

    @property
    def availability(self) -> str:
        """The availability model as plans show it."""
        if self.capacity_block:
            return "capacity block"
        return "spot" if self.spot else "on-demand"


def read_settings(cluster: ClusterSettings) -> AwsSettings:
    """Return the settings of a cluster that the schema accepts."""
    own: Mapping[str, Any] = cluster.settings
    others: dict[str, Any] = {}
    if isinstance(own.get("subnet"), str):
        others["subnet"] = (own["subnet"],)
    accelerator = own.get("accelerator", "")
    if "instance_types" not in own and (counts := counts_of(accelerator)):
        others["instance_types"] = types_with(accelerator, int(own.get("count", max(counts))))
    reserved = own.get("capacity_block") or own.get("capacity_reservation")
    others["placement_group"] = own.get("placement_group", bool(own.get("efa")) and not reserved)
    return AwsSettings.read({"ami": DEFAULT_IMAGE, **own}, **others)


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield settings that contradict each other, but for those that EC2 refuses."""
    own, settings = cluster.settings, read_settings(cluster)
    accelerator = own.get("accelerator")
    if bool(accelerator) == bool(own.get("instance_types")):
        yield SettingsProblem(
            (),
            "set either instance_types or accelerator",
            f"Use for example instance_types: [g6.xlarge], or accelerator: {ACCELERATORS[-1]}.",
        )
    elif not settings.instance_types:
        counts = ", ".join(map(str, counts_of(str(accelerator))))
        yield SettingsProblem(
            ("count",), f"no known instance type has {own.get('count')} GPUs of type {accelerator}",
            f"Use {counts}, or name instance_types.",
        )  # fmt: skip
    if not settings.security_groups and not settings.ssh_from:
        yield SettingsProblem(
            (),
            "ssh_from is missing",
            "Set the address range that you connect from, for example ssh_from: [203.0.113.7/32], or name security_groups.",
        )
    for number, text in enumerate(settings.ssh_from):
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            yield SettingsProblem(
                ("ssh_from", number), f"{text} is not an address range: {error}",
                "Use CIDR notation, for example 203.0.113.7/32.",
            )  # fmt: skip
    if 0 < settings.max_nodes < settings.nodes:
        yield SettingsProblem(
            ("max_nodes",), f"max_nodes is less than nodes ({settings.nodes})", "Raise max_nodes."
        )
    for name in settings.instance_types if settings.efa and settings.address == "public" else ():
        if name in TYPES and TYPES[name].network_cards > 1:
            yield SettingsProblem(
                ("address",), f"{name} with EFA has several network cards, so it gets no public address",
                "Set address: private, and jump to a host in the VPC.",
            )  # fmt: skip
