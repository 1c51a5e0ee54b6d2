"""Create one instance for a key: the first offer with capacity, and never a second instance."""

from __future__ import annotations

import hashlib
import json
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
    CLUSTER,
    HOST_KEY,
    KEY,
    LINEAGE,
    LIVE,
    NODE,
    PRICE,
    AwsAccount,
    AwsError,
    Instance,
    find_instances,
    id_filters,
    state_of,
    tag_filters,
    tag_list,
)
from trainctl_aws.catalog import TYPES, quota_of
from trainctl_aws.cluster_resources import ClusterNetwork
from trainctl_aws.offers import subnet_zones
from trainctl_aws.settings import read_settings
from trainctl_ssh.keys import data_directory, derive_host_key, ensure_login_key, login_key_path
from trainctl_ssh.machines import wait
from trainctl_ssh.user_data import user_data

_QUOTA = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded"})
_CAPACITY = _QUOTA | {
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "ReservationCapacityExceeded",
    "CapacityReservationNotActive",
    "InvalidCapacityReservationState",
    "Unsupported",
    "UnsupportedOperation",
    "SpotMaxPriceTooLow",
}
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
        self._failures: list[tuple[str, str, str]] = []
        """Type of each offer without capacity, the reason, and both in words."""

    def launch(self, offers: Sequence[Offer]) -> Instance:
        """Launch with the first offer that has capacity; NodeError without any."""
        cluster, most = self._cluster, self._settings.max_nodes
        filters = tag_filters(cluster=cluster.name, lineage=cluster.lineage)
        if most and (count := len(find_instances(self._account, filters))) >= most:
            raise NodeError(
                f"cluster {cluster.name} has {count} machines already, and max_nodes is {most}",
                "Delete machines, or raise max_nodes.",
            )
        started = self._record.read()
        if started is not None:
            instance = self._try(started[0], 0, started[1])
            if instance is not None:
                return self._only_one(instance)
        end, rounds = time.monotonic() + self._settings.capacity_timeout, 0
        while True:
            self._failures.clear()
            for offer in offers:
                instance = self._try(offer, rounds)
                if instance is not None:
                    return self._only_one(instance)
            if time.monotonic() + _ROUND_SECONDS > end:
                self._record.remove()
                raise self._no_capacity(offers)
            wait(self._cluster, _ROUND_SECONDS)
            rounds += 1

    def _try(self, offer: Offer, rounds: int, token: str = "") -> Instance | None:
        """Launch by an offer; None without capacity."""
        try:
            return self._launch(offer, rounds, token)
        except AwsError as error:
            if error.reason not in _CAPACITY:
                raise
            zone = f" in {offer.zone}" if offer.zone else ""
            failure = f"{offer.type}{zone}, {offer.availability}: {error.reason}"
            self._failures.append((offer.type, error.reason, failure))
            if not rounds:
                self._cluster.notify(f"{self._cluster.name}/{self._name}: no capacity: {failure}")
            return None

    def _launch(self, offer: Offer, rounds: int, token: str) -> Instance:
        """Return a live instance. A token may name an instance that has ended; the next one launches another."""
        for ended in range(_MAX_ENDED):
            parts = (self._key, offer.type, offer.zone, offer.availability, str(rounds), str(ended))
            token = token or hashlib.sha256("|".join(parts).encode()).hexdigest()
            self._record.write(offer, token)
            instance = self._await_visible(self._run_instance(offer, token))
            if state_of(instance) in LIVE:
                return instance
            reason = str((instance.get("StateReason") or {}).get("Code", ""))
            if reason.endswith("InsufficientInstanceCapacity"):
                raise AwsError(f"{instance['InstanceId']} ended: {reason}", "", reason[7:])
            token = ""
        raise NodeError(f"{_MAX_ENDED} machines for {self._name} have ended already")

    def _run_instance(self, offer: Offer, token: str) -> str:
        """Send the request; return the instance ID, that of an earlier request with this token included."""
        parameters = self._parameters(offer, token)
        try:
            answer = self._account.ec2("run_instances", ClientToken=token, **parameters)
        except AwsError as error:
            if error.reason != "IdempotentParameterMismatch":
                raise
            # an earlier attempt launched it with other settings
            instance = find_by_token(self._account, token)
            if instance is None:
                raise
            return str(instance["InstanceId"])
        return str(answer["Instances"][0]["InstanceId"])

    def _await_visible(self, instance_id: str) -> Instance:
        """Return the description of a new instance, which EC2 shows with a delay."""
        end = time.monotonic() + LAG_SECONDS
        while True:
            if found := find_instances(self._account, id_filters(instance_id), ANY):
                return found[0]
            if time.monotonic() > end:
                raise NodeUnreachable(f"{instance_id} is not visible yet", "Apply again.")
            time.sleep(0.5)

    def _only_one(self, instance: Instance) -> Instance:
        """Keep the oldest instance of the key: a killed attempt may have used another offer."""
        first, *others = find_instances(self._account, tag_filters(key=self._key)) or [instance]
        if others:
            surplus = [other["InstanceId"] for other in others]
            self._account.ec2("terminate_instances", InstanceIds=surplus)
        self._record.remove()
        return first

    def _no_capacity(self, offers: Sequence[Offer]) -> NodeError:
        node, region = f"{self._cluster.name}/{self._name}", self._account.region
        tried = "\n".join(f"  {failure}" for *_, failure in self._failures)
        quotas = [name for name, reason, _ in self._failures if reason in _QUOTA]
        if quotas:
            quota = quota_of(quotas[0], spot=self._settings.spot)
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
        tags = {
            **settings.tags,
            "Name": f"{cluster.name}/{self._name}",
            LINEAGE: cluster.lineage,
            CLUSTER: cluster.name,
            NODE: self._name,
            KEY: self._key,
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
        return ClusterNetwork(self._account, self._cluster.name, self._cluster.lineage)

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
            self._network().ensure_security_group(settings, subnet["VpcId"])
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


def find_by_key(account: AwsAccount, key: str, record: LaunchRecord) -> Instance | None:
    """Return the live instance of a key; wait for one that was launched less than a minute ago."""
    while True:
        found = find_instances(account, tag_filters(key=key))
        if found:
            return found[0]
        launched = record.read()
        if launched is None or launched[2] > LAG_SECONDS:
            return None
        if find_by_token(account, launched[1]) is not None:
            return None  # it has ended already
        time.sleep(1.0)


def find_by_token(account: AwsAccount, token: str) -> Instance | None:
    """Return the instance that a request launched, in any state."""
    filters = [{"Name": "client-token", "Values": [token]}]
    found = find_instances(account, filters, ANY)
    return found[0] if found else None
