"""Settings of a cluster as values, and checks beyond the schema."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.base.units import parse_duration
from trainctl.plugin_api.provider import ClusterSettings, SettingsProblem
from trainctl_aws.market.catalog import ACCELERATORS, TYPES, counts_of, types_with

DEFAULT_IMAGE = (
    "ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Settings of one cluster; durations in seconds."""

    region: str
    instance_types: tuple[str, ...]
    zones: tuple[str, ...] = ()
    nodes: int = 1
    max_nodes: int = 0
    ami: str = DEFAULT_IMAGE
    user: str = "ubuntu"
    spot: bool = False
    capacity_reservation: str = ""
    capacity_block: str = ""
    volume: int = 200
    placement_group: str | bool = False
    efa: bool = False
    instance_profile: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    ssh_from: tuple[str, ...] = ()
    public: bool = True
    jump: str = ""
    port: int = 22
    max_price_per_hour: float | None = None
    capacity_timeout: float = 0.0
    boot_timeout: float = 900.0
    idle_timeout: float = 1800.0

    @property
    def availability(self) -> str:
        """The availability model as plans show it."""
        if self.capacity_block:
            return "capacity block"
        return "spot" if self.spot else "on-demand"


def read_settings(cluster: ClusterSettings) -> AwsSettings:
    """Return the settings of a cluster that the schema accepts."""
    own: Mapping[str, Any] = cluster.settings
    subnet, efa = own.get("subnet"), bool(own.get("efa"))
    reserved = own.get("capacity_block") or own.get("capacity_reservation")
    return AwsSettings(
        region=str(own["region"]),
        instance_types=_instance_types(own),
        zones=tuple(own.get("zones") or ()),
        nodes=int(own.get("nodes") or 1),
        max_nodes=int(own.get("max_nodes") or 0),
        ami=str(own.get("ami") or DEFAULT_IMAGE),
        user=str(own.get("user") or "ubuntu"),
        spot=own.get("availability_model") == "spot",
        capacity_reservation=str(own.get("capacity_reservation") or ""),
        capacity_block=str(own.get("capacity_block") or ""),
        volume=int(own.get("volume") or 200),
        placement_group=own.get("placement_group", efa and not reserved),
        efa=efa,
        instance_profile=str(own.get("instance_profile") or ""),
        tags=tuple(sorted((own.get("tags") or {}).items())),
        subnets=(subnet,) if isinstance(subnet, str) else tuple(subnet or ()),
        security_groups=tuple(own.get("security_groups") or ()),
        ssh_from=tuple(own.get("ssh_from") or ()),
        public=own.get("address") != "private",
        jump=str(own.get("jump") or ""),
        port=int(own.get("port") or 22),
        max_price_per_hour=own.get("max_price_per_hour"),
        capacity_timeout=parse_duration(own.get("capacity_timeout") or 0),
        boot_timeout=parse_duration(own.get("boot_timeout") or "15m"),
        idle_timeout=parse_duration(own.get("idle_timeout") or "30m"),
    )


def _instance_types(own: Mapping[str, Any]) -> tuple[str, ...]:
    if own.get("instance_types"):
        return tuple(own["instance_types"])
    accelerator = str(own.get("accelerator") or "")
    counts = counts_of(accelerator)
    if not counts:
        return ()
    return types_with(accelerator, int(own.get("count") or max(counts)))


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield settings that contradict each other."""
    own, settings = cluster.settings, read_settings(cluster)
    yield from _type_problems(own, settings)
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
    for number, zone in enumerate(settings.zones):
        if not zone.startswith(settings.region):
            yield SettingsProblem(
                ("zones", number), f"zone {zone} is not in region {settings.region}",
                "Use zones of the region.",
            )  # fmt: skip
    if 0 < settings.max_nodes < settings.nodes:
        yield SettingsProblem(
            ("max_nodes",), f"max_nodes is less than nodes ({settings.nodes})", "Raise max_nodes."
        )
    yield from _purchase_problems(settings)
    yield from _efa_problems(settings)


def _type_problems(own: Mapping[str, Any], settings: AwsSettings) -> Iterator[SettingsProblem]:
    accelerator, types = own.get("accelerator"), own.get("instance_types")
    if bool(accelerator) == bool(types):
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


def _purchase_problems(settings: AwsSettings) -> Iterator[SettingsProblem]:
    reserved = settings.capacity_reservation or settings.capacity_block
    if settings.capacity_reservation and settings.capacity_block:
        yield SettingsProblem(
            ("capacity_block",), "capacity_block and capacity_reservation exclude each other",
            "Set one of them.",
        )  # fmt: skip
    if reserved and settings.spot:
        yield SettingsProblem(
            ("availability_model",), "spot instances can't use reserved capacity",
            "Remove availability_model: spot.",
        )  # fmt: skip


def _efa_problems(settings: AwsSettings) -> Iterator[SettingsProblem]:
    if not settings.efa:
        return
    for name in settings.instance_types:
        known = TYPES.get(name)
        if known is not None and not known.network_cards:
            yield SettingsProblem(
                ("efa",), f"{name} has no EFA", "Use other instance types, or remove efa."
            )
        elif known is not None and known.network_cards > 1 and settings.public:
            yield SettingsProblem(
                ("address",), f"{name} with EFA has several network cards, so it gets no public address",
                "Set address: private, and jump to a host in the VPC.",
            )  # fmt: skip
