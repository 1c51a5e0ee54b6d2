"""Create one instance for a key: the first offer with capacity, and never a second instance."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from trainctl.base.filesystem.files import write_json
from trainctl.base.lazy_dataclass import asdict
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.machines import Offer
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_aws.account import (
    ANY,
    LIVE,
    AwsAccount,
    AwsError,
    Instance,
    poll,
    tag_list,
    tagged,
)
from trainctl_aws.catalog import TYPES, ServiceQuota, quota_of
from trainctl_aws.cluster_resources import ClusterResources
from trainctl_aws.offers import subnet_zones
from trainctl_aws.settings import read_settings
from trainctl_ssh.keys import (
    HOST_KEY,
    data_directory,
    derive_host_key,
    ensure_login_key,
    login_key_path,
)
from trainctl_ssh.machines import wait
from trainctl_ssh.user_data import user_data

_QUOTA = r"VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded"
_CAPACITY = (
    rf"{_QUOTA}|Insufficient(Instance|Host|ReservedInstance)?Capacity|ReservationCapacityExceeded"
    r"|CapacityReservationNotActive|InvalidCapacityReservationState|Unsupported(Operation)?"
    r"|SpotMaxPriceTooLow"
)
"""Errors after which the next offer is tried."""
_ROUND_SECONDS = 15.0
_MAX_ENDED = 20
"""How many earlier instances of a key may have ended."""
LAG_SECONDS = 60.0
"""How long a new instance may be missing from answers of EC2."""
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


class InstanceLauncher:
    """Launches the instance of one key, and creates the groups that it needs."""

    def __init__(self, account: AwsAccount, cluster: ClusterSettings, name: str, key: str) -> None:
        self._account, self._cluster, self._settings = account, cluster, read_settings(cluster)
        self._name, self._key, self._record = name, key, LaunchRecord(key)
        self._failures: list[str] = []
        self._quota: ServiceQuota | None = None
        self._resources = ClusterResources(account, cluster.name, cluster.lineage)

    def launch(self, offers: Sequence[Offer]) -> Instance:
        """Launch with the first offer that has capacity; NodeError without any."""
        cluster, most = self._cluster, self._settings.max_nodes
        of_cluster = tagged(cluster=cluster.name, lineage=cluster.lineage)
        if most and (count := len(self._account.instances(of_cluster))) >= most:
            raise NodeError(
                f"cluster {cluster.name} has {count} machines already, and max_nodes is {most}",
                "Delete machines, or raise max_nodes.",
            )
        started = self._record.read()
        if started and (instance := self._try(started[0], 0, started[1])):
            return self._only_one(instance)
        end = time.monotonic() + self._settings.capacity_timeout
        for rounds in itertools.count():
            self._failures, self._quota = [], None
            for offer in offers:
                if instance := self._try(offer, rounds):
                    return self._only_one(instance)
            if time.monotonic() + _ROUND_SECONDS > end:
                break
            wait(self._cluster, _ROUND_SECONDS)
        raise self._no_capacity(offers)

    def _try(self, offer: Offer, rounds: int, token: str = "") -> Instance | None:
        """Launch by an offer; None without capacity."""
        try:
            return self._launch(offer, rounds, token)
        except AwsError as error:
            if not re.fullmatch(_CAPACITY, error.reason):
                raise
            if re.fullmatch(_QUOTA, error.reason):
                self._quota = self._quota or quota_of(offer.type, spot=self._settings.spot)
            zone = f" in {offer.zone}" if offer.zone else ""
            self._failures.append(f"{offer.type}{zone}, {offer.availability}: {error.reason}")
            if not rounds:
                node = f"{self._cluster.name}/{self._name}"
                self._cluster.notify(f"{node}: no capacity: {self._failures[-1]}")
            return None

    def _launch(self, offer: Offer, rounds: int, token: str) -> Instance:
        """Return a live instance. A token may name an instance that has ended; the next one launches another."""
        for ended in range(_MAX_ENDED):
            parts = (self._key, offer.type, offer.zone, offer.availability, str(rounds), str(ended))
            token = token or hashlib.sha256("|".join(parts).encode()).hexdigest()
            self._record.write(offer, token)
            if instance := self._instance_of(offer, token):
                return instance
            token = ""
        raise NodeError(f"{_MAX_ENDED} machines for {self._name} have ended already")

    def _instance_of(self, offer: Offer, token: str) -> Instance | None:
        """Send the request, unless it was sent before; None if its instance has ended."""
        parameters = self._parameters(offer, token)
        try:
            self._account.ec2("run_instances", ClientToken=token, **parameters)
        except AwsError as error:
            if error.reason == "IdempotentInstanceTerminated":
                return None
            if error.reason != "IdempotentParameterMismatch":  # sent with other settings
                if not error.retryable:
                    self._record.remove()  # there is no instance
                raise
        filters = {"client-token": [token]}
        found = poll(lambda: self._account.instances(filters, ANY), LAG_SECONDS)
        if not found:
            raise NodeUnreachable(f"the machine of {self._name} is not visible yet", "Apply again.")
        if found[0]["State"]["Name"] in LIVE:
            return found[0]
        reason = found[0].get("StateReason", {}).get("Code", "")
        if reason.endswith("InsufficientInstanceCapacity"):
            raise AwsError(f"{found[0]['InstanceId']} ended: {reason}", "", reason[7:])
        return None

    def _only_one(self, instance: Instance) -> Instance:
        """Keep the oldest instance of the key: a killed attempt may have used another offer."""
        first, *others = self._account.instances(tagged(key=self._key)) or [instance]
        if others:
            surplus = [other["InstanceId"] for other in others]
            self._account.ec2("terminate_instances", InstanceIds=surplus)
        self._record.remove()
        return first

    def _no_capacity(self, offers: Sequence[Offer]) -> NodeError:
        node, region = f"{self._cluster.name}/{self._name}", self._account.region
        tried = "\n".join(f"  {failure}" for failure in self._failures)
        if quota := self._quota:
            page = f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
            return NodeError(
                f"quota reached in {region}: {quota.name} ({quota.code})",
                f"Tried:\n{tried}\nRequest an increase: {page}/{quota.code}",
                code="machine-quota",
            )
        summary = f"no capacity for {node} in {region}"
        advice = f"Tried:\n{tried}\nAdd instance_types or zones, or set capacity_timeout to wait."
        if not offers:
            summary = f"no offers for {node}"
            advice = "No zone has these instance types below max_price_per_hour. Change instance_types, zones or the limit."
        return NodeError(summary, advice, code="machine-capacity")

    def _parameters(self, offer: Offer, token: str) -> dict[str, Any]:
        """Return the parameters of RunInstances: the same for every attempt with one token."""
        cluster, settings = self._cluster, self._settings
        login = ensure_login_key(login_key_path("aws", cluster.name, cluster.lineage))
        host = derive_host_key(login, token)
        marks = {
            "lineage": cluster.lineage,
            "cluster": cluster.name,
            "node": self._name,
            "key": self._key,
        }
        own = {HOST_KEY: host.public}
        if offer.price_per_hour is not None:
            own["price"] = f"{offer.price_per_hour:g}"
        named = {**settings.tags, "Name": f"{cluster.name}/{self._name}"}
        tags = [*tag_list(named, prefix=""), *tag_list(marks)]
        group = settings.placement_group
        if group is True:
            group = self._resources.ensure_placement_group()
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
                {"ResourceType": "instance", "Tags": [*tags, *tag_list(own)]},
                {"ResourceType": "volume", "Tags": tags},
            ],
        }
        if settings.instance_profile:
            parameters["IamInstanceProfile"] = {"Name": settings.instance_profile}
        if settings.spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if settings.max_price_per_hour is not None:
                options["MaxPrice"] = f"{settings.max_price_per_hour:g}"
            parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if settings.capacity_block:
            parameters["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if reserved := settings.capacity_block or settings.capacity_reservation:
            target = {"CapacityReservationId": reserved}
            parameters["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        return parameters

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
            self._resources.ensure_security_group(settings, subnet["VpcId"])
        ]
        interface = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "Groups": groups}
        known = TYPES.get(offer.type)
        cards = max(1, known.network_cards if known else 1) if settings.efa else 1
        if cards == 1:
            interface["AssociatePublicIpAddress"] = settings.address == "public"
        if not settings.efa:
            return [interface]
        more = {"InterfaceType": "efa", "DeleteOnTermination": True}
        return [
            {**interface, **more, "NetworkCardIndex": card, "DeviceIndex": min(card, 1)}
            for card in range(cards)
        ]


class LaunchRecord:
    """File of a launch that EC2 has not confirmed: the token and offer, written before the request.

    A later attempt starts with that offer, and ``find`` waits until its instance is visible.
    """

    def __init__(self, key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._path = data_directory("aws") / "launches" / f"{name}.json"

    def write(self, offer: Offer, token: str) -> None:
        """Record the request that follows."""
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        record = {"offer": asdict(offer), "token": token, "at": time.time()}
        write_json(self._path, record, durable=False)

    def read(self) -> tuple[Offer, str, float] | None:
        """Return the recorded offer and token, and the seconds since the request."""
        try:
            value = json.loads(self._path.read_text())
            age = time.time() - value["at"]
            return Offer(**value["offer"]), str(value["token"]), age
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Forget the request: its outcome is known."""
        self._path.unlink(missing_ok=True)
