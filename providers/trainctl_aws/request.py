"""Parameters of RunInstances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.errors import NodeError
from trainctl.plugin_api.offers import Offer
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_aws.account import AwsAccount
from trainctl_aws.keys import derive_host_key, ensure_login_key, login_key_path
from trainctl_aws.market.catalog import TYPES
from trainctl_aws.market.offers import subnet_zones
from trainctl_aws.network import ClusterNetwork
from trainctl_aws.settings import AwsSettings
from trainctl_aws.tags import CLUSTER, HOST_KEY, KEY, LINEAGE, NODE, PRICE, tag_list
from trainctl_aws.user_data import user_data


class RunInstancesRequest:
    """Builds the parameters for one node, and creates the groups that they name."""

    def __init__(
        self,
        account: AwsAccount,
        cluster: ClusterSettings,
        settings: AwsSettings,
        environ: Mapping[str, str],
        node: str,
        key: str,
    ) -> None:
        self._account = account
        self._cluster = cluster
        self._settings = settings
        self._node = node
        self._key = key
        self._login = login_key_path(environ, cluster.name, cluster.lineage)
        self._groups = ClusterNetwork(account, cluster.name, cluster.lineage)

    def parameters(self, offer: Offer, token: str) -> dict[str, Any]:
        """Return the parameters of RunInstances: the same for every attempt with one token."""
        cluster, settings = self._cluster, self._settings
        login = ensure_login_key(self._login)
        host = derive_host_key(login, token)
        tags = {
            **dict(settings.tags),
            "Name": f"{cluster.name}/{self._node}",
            LINEAGE: cluster.lineage,
            CLUSTER: cluster.name,
            NODE: self._node,
            KEY: self._key,
        }
        price = {} if offer.price_per_hour is None else {PRICE: f"{offer.price_per_hour:g}"}
        own = {**tags, HOST_KEY: host.public, **price}
        return {
            **launch_parameters(settings, offer),
            **self._image(),
            "UserData": user_data(settings.user, login, host, settings.boot_timeout),
            "NetworkInterfaces": self._interfaces(offer),
            "Placement": self._placement(),
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": tag_list(own)},
                {"ResourceType": "volume", "Tags": tag_list(tags)},
            ],
        }

    def _image(self) -> dict[str, Any]:
        ami = self._settings.ami
        if ami.startswith("ssm:"):
            name = ami.removeprefix("ssm:")
            ami = self._account.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"]
        image = self._account.ec2("describe_images", ImageIds=[ami])["Images"][0]
        disk = {
            "VolumeSize": self._settings.volume,
            "VolumeType": "gp3",
            "DeleteOnTermination": True,
            "Encrypted": True,
        }
        device = image.get("RootDeviceName") or "/dev/sda1"
        return {"ImageId": ami, "BlockDeviceMappings": [{"DeviceName": device, "Ebs": disk}]}

    def _interfaces(self, offer: Offer) -> list[dict[str, Any]]:
        settings = self._settings
        subnets = subnet_zones(self._account, settings)
        zone = offer.zone or min(subnets)
        if zone not in subnets:
            raise NodeError(f"no subnet in {zone}", "Add one to subnet, or remove the zone.")
        subnet = subnets[zone]
        groups = list(settings.security_groups) or [
            self._groups.ensure_security_group(settings, subnet["VpcId"])
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

    def _placement(self) -> dict[str, Any]:
        group = self._settings.placement_group
        if not group:
            return {}
        return {
            "GroupName": group if isinstance(group, str) else self._groups.ensure_placement_group()
        }


def launch_parameters(settings: AwsSettings, offer: Offer) -> dict[str, Any]:
    """Return the parameters of RunInstances that depend on settings and offer only."""
    parameters: dict[str, Any] = {
        "InstanceType": offer.type,
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required"},
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
