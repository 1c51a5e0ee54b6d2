"""moto's EC2 in this process, changed so that no address leaves loopback and that launches are validated."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from moto import settings
from moto.ec2 import utils
from moto.ec2.models import ec2_backends, instances
from moto.ec2.models import elastic_ip_addresses as addresses
from moto.ec2.models import elastic_network_interfaces as interfaces
from moto.ec2.models.instance_types import INSTANCE_TYPES

ACCOUNT = "123456789012"


def confine() -> None:
    """Replace moto's invented public addresses, and validate AMIs, key names and instance types."""

    def check_auto_public_ip(interface: Any) -> None:
        if str(interface.public_ip_auto_assign).lower() == "true":
            interface.public_ip = interface.private_ip_address

    module: Any = interfaces
    module.NetworkInterface.check_auto_public_ip = check_auto_public_ip
    module.generate_dns_from_ip = lambda *_, **__: ""
    instance: Any = instances.Instance
    instance.public_dns_name = property(lambda _: "")
    for name in ("random_ip", "random_public_ip"):
        if hasattr(addresses, name):
            setattr(addresses, name, lambda: "127.255.255.254")
    utils.filter_dict_attribute_mapping["client-token"] = "client_token"
    utils.filter_dict_attribute_mapping["instance-lifecycle"] = "lifecycle"
    settings.ENABLE_AMI_VALIDATION = settings.ENABLE_KEYPAIR_VALIDATION = True
    settings.EC2_ENABLE_INSTANCE_TYPE_VALIDATION = True


@contextmanager
def claim_network() -> Iterator[int]:
    """Claim a block 127.N.0.0/16 that no other process has, while the context lasts; N."""
    for number in range(64, 255):
        with socket.socket() as lock:
            try:
                lock.bind((f"127.{number}.255.1", 9))
            except OSError:
                continue
            yield number
            return
    raise AssertionError("all blocks of loopback addresses are taken")


def ssh_port(address: str) -> int:
    """Return 22, or 22022 if another process has port 22 on all addresses."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind((address, 22))
        except OSError:
            return 22022
    return 22


class RegionBackend:
    """moto's state of a region. Its only VPC is the default VPC, with a subnet of /24 per zone on loopback."""

    def __init__(self, region: str, network: int) -> None:
        self.moto: Any = ec2_backends[ACCOUNT][region]
        self._network = network
        self._make_network()

    def reset(self) -> None:
        """Forget everything but the images."""
        images = self.moto.amis
        self.moto.reset()
        self.moto.amis = images
        self._make_network()

    def _make_network(self) -> None:
        moto = self.moto
        for subnet in moto.describe_subnets():
            moto.delete_subnet(subnet.id)
        for old in list(moto.vpcs):
            moto.delete_vpc(old)
        vpc = moto.create_vpc(f"127.{self._network}.0.0/20", is_default=True)
        moto.default_vpc = vpc
        for at, zone in enumerate(moto.describe_availability_zones()):
            block = f"127.{self._network}.{at}.0/24"
            subnet = moto.create_subnet(vpc.id, block, availability_zone=zone.name)
            subnet.map_public_ip_on_launch = False

    def placed(self, params: Mapping[str, str], address: str | None) -> dict[str, str]:
        """Return the parameters of a launch with a subnet, and an address that an earlier instance had."""
        prefix = "NetworkInterface.1." if "NetworkInterface.1.DeviceIndex" in params else ""
        subnet = params.get(f"{prefix}SubnetId") or self._subnet(params, address).id
        placed = {**params, f"{prefix}SubnetId": subnet}
        if address:
            placed[f"{prefix}PrivateIpAddress"] = address
            self.moto.get_subnet(subnet)._subnet_ips.pop(address, None)
        return placed

    def _subnet(self, params: Mapping[str, str], address: str | None) -> Any:
        zone = params.get("Placement.AvailabilityZone")
        return next(
            subnet
            for subnet in self.moto.describe_subnets()
            if zone in (None, subnet.availability_zone)
            and (address is None or ip_address(address) in subnet.cidr)
        )

    def user_data(self, instance: Any) -> str:
        """Return an instance's decoded user data."""
        return base64.b64decode(str(instance.user_data)).decode()

    def default_image(self) -> str:
        return next(
            str(image.id)
            for image in self.moto.describe_images()
            if "ubuntu" in (image.name or "").lower() and image.architecture == "x86_64"
        )


def gpu_count(instance_type: str) -> int:
    """Return the number of NVIDIA GPUs of an instance type."""
    info = INSTANCE_TYPES.get(instance_type, {}).get("GpuInfo", {})
    return sum(gpu["Count"] for gpu in info.get("Gpus", []) if gpu["Manufacturer"] == "NVIDIA")
