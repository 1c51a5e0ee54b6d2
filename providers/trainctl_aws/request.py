"""Parameters of RunInstances, and the node cache on local disks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError
from trainctl.plugin_api.machines import Offer
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_aws.account import (
    CLUSTER,
    HOST_KEY,
    KEY,
    LINEAGE,
    NODE,
    PRICE,
    AwsAccount,
    tag_list,
)
from trainctl_aws.catalog import TYPES
from trainctl_aws.cluster_resources import ClusterNetwork
from trainctl_aws.offers import subnet_zones
from trainctl_aws.settings import AwsSettings
from trainctl_ssh.keys import derive_host_key, ensure_login_key, login_key_path
from trainctl_ssh.user_data import user_data

LOCAL_DISKS = """\
# Mount the local NVMe disks, striped, as the node cache of trainctl.
cache=$root/cache
set -- $(ls /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_* 2>/dev/null | grep -v -e -part -e '_1$' -e -ns-)
if [ $# -gt 0 ]; then
    mkdir -p "$cache"
    systemctl start dlami-nvme.service 2>/dev/null
    if mountpoint -q /opt/dlami/nvme; then
        mkdir -p /opt/dlami/nvme/trainctl
        mount --bind /opt/dlami/nvme/trainctl "$cache"
    else
        [ $# = 1 ] || mdadm --assemble --scan
        mount -o noatime LABEL=trainctl "$cache" 2>/dev/null || {
            disk=$1
            [ $# = 1 ] || { disk=/dev/md/trainctl; mdadm --create $disk --run --level=0 --raid-devices=$# "$@"; }
            mkfs.ext4 -q -L trainctl -E nodiscard -m 0 "$disk" && mount -o noatime "$disk" "$cache" && rmdir "$cache/lost+found"
        }
    fi
    chown $user: "${root%/*}" "$root" "$cache" && chmod 700 "$root" "$cache"
fi
"""
"""Script at each boot."""


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A machine to launch for one key. Creates the groups that the parameters name."""

    account: AwsAccount
    cluster: ClusterSettings
    settings: AwsSettings
    environ: Mapping[str, str]
    name: str
    key: str

    def parameters(self, offer: Offer, token: str) -> dict[str, Any]:
        """Return the parameters of RunInstances: the same for every attempt with one token."""
        cluster, settings = self.cluster, self.settings
        login = ensure_login_key(login_key_path(self.environ, "aws", cluster.name, cluster.lineage))
        host = derive_host_key(login, token)
        tags = {
            **dict(settings.tags),
            "Name": f"{cluster.name}/{self.name}",
            LINEAGE: cluster.lineage,
            CLUSTER: cluster.name,
            NODE: self.name,
            KEY: self.key,
        }
        price = {} if offer.price_per_hour is None else {PRICE: f"{offer.price_per_hour:g}"}
        own = {**tags, HOST_KEY: host.public, **price}
        group = settings.placement_group
        if group is True:
            group = self._network().ensure_placement_group()
        parameters: dict[str, Any] = {
            "InstanceType": offer.type,
            "MinCount": 1,
            "MaxCount": 1,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required"},
            **self._image(),
            "UserData": user_data(settings.user, login, host, settings.boot_timeout, LOCAL_DISKS),
            "NetworkInterfaces": self._interfaces(offer),
            "Placement": {"GroupName": group} if group else {},
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": tag_list(own)},
                {"ResourceType": "volume", "Tags": tag_list(tags)},
            ],
        }
        if settings.instance_profile:
            parameters["IamInstanceProfile"] = {"Name": settings.instance_profile}
        if settings.spot:
            limit = settings.max_price_per_hour
            parameters["InstanceMarketOptions"] = {
                "MarketType": "spot",
                "SpotOptions": {
                    "SpotInstanceType": "one-time",
                    "InstanceInterruptionBehavior": "terminate",
                    **({} if limit is None else {"MaxPrice": f"{limit:g}"}),
                },
            }
        if settings.capacity_block:
            parameters["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        reserved = settings.capacity_block or settings.capacity_reservation
        if reserved:
            target = {"CapacityReservationId": reserved}
            parameters["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        return parameters

    def _network(self) -> ClusterNetwork:
        return ClusterNetwork(self.account, self.cluster.name, self.cluster.lineage)

    def _image(self) -> dict[str, Any]:
        ami = self.settings.ami
        if ami.startswith("ssm:"):
            name = ami.removeprefix("ssm:")
            ami = self.account.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"]
        image = self.account.ec2("describe_images", ImageIds=[ami])["Images"][0]
        disk = {
            "VolumeSize": self.settings.volume,
            "VolumeType": "gp3",
            "DeleteOnTermination": True,
            "Encrypted": True,
        }
        device = image.get("RootDeviceName") or "/dev/sda1"
        return {"ImageId": ami, "BlockDeviceMappings": [{"DeviceName": device, "Ebs": disk}]}

    def _interfaces(self, offer: Offer) -> list[dict[str, Any]]:
        settings = self.settings
        subnets = subnet_zones(self.account, settings)
        zone = offer.zone or min(subnets)
        if zone not in subnets:
            raise NodeError(f"no subnet in {zone}", "Add one to subnet, or remove the zone.")
        subnet = subnets[zone]
        groups = list(settings.security_groups) or [
            self._network().ensure_security_group(settings, subnet["VpcId"])
        ]
        interface = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "Groups": groups}
        known = TYPES.get(offer.type)
        cards = max(1, known.network_cards if known else 1) if settings.efa else 1
        if cards == 1:
            interface["AssociatePublicIpAddress"] = settings.public
        if not settings.efa:
            return [interface]
        more = {"InterfaceType": "efa", "DeleteOnTermination": True}
        return [
            {**interface, **more, "NetworkCardIndex": card, "DeviceIndex": min(card, 1)}
            for card in range(cards)
        ]
