"""Provider of nodes on EC2 instances; see DESIGN.md."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.machines import ListsMachines, Machine, Offer, OffersMachines
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
)
from trainctl_aws.account import (
    ANY,
    LIVE,
    NOT_ENDED,
    AwsAccount,
    Instance,
    ignore_refusal,
    poll,
    tag_list,
    tagged,
    tags_of,
)
from trainctl_aws.catalog import TYPES
from trainctl_aws.cluster_resources import ClusterResources
from trainctl_aws.launch import LAG_SECONDS, InstanceLauncher, LaunchRecord
from trainctl_aws.offers import MarketFacts, make_offers, survey_market
from trainctl_aws.settings import AwsSettings, find_problems, read_settings
from trainctl_ssh.keys import HOST_KEY, NEXT_HOST_KEY
from trainctl_ssh.machines import SshMachines, planned_nodes

_CLOSE_SECONDS = 10.0
_OFFERS_TTL_SECONDS = 60.0
_END_SECONDS = 900.0  # large machines shut down for minutes
_FIXED = (
    "region", "instance_types", "accelerator", "count", "ami", "user", "availability_model", "capacity_reservation",
    "capacity_block", "volume", "placement_group", "efa", "instance_profile", "subnet", "security_groups", "address", "port",
)  # fmt: skip


class AwsProvider(SshMachines):
    """Nodes on EC2 instances, reached over ssh with a key of the cluster."""

    name = "aws"
    capabilities = Capabilities(
        creates_machines=True, costs_money=True, replacement_settings=_FIXED
    )

    def __init__(self) -> None:
        super().__init__()
        self._accounts: dict[str, AwsAccount] = {}
        self._offers: dict[str, tuple[float, list[Offer]]] = {}
        self._unused: set[tuple[str, str, str]] = set()
        """Region, cluster and lineage of launches that failed; others may need its groups until the command ends."""

    def close(self) -> None:
        super().close()
        unused, self._unused = self._unused, set()
        for region, *owner in unused:
            account = AwsAccount(region, retry_seconds=_CLOSE_SECONDS)
            with closing(account), suppress(NodeError):
                ClusterResources(account, *owner).delete_unused()
        accounts, self._accounts = self._accounts, {}
        for account in accounts.values():
            account.close()

    def schema(self) -> JsonObject:
        return AwsSettings.schema("region")

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return tuple(find_problems(cluster))

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        """The price is that of the first type, the GPUs are those that all types have."""
        settings = read_settings(cluster)
        types = [TYPES.get(name) for name in settings.instance_types]
        counts = [known.gpus if known else -1 for known in types]
        gpus = None if -1 in counts else min(counts, default=None)
        price = types[0].price if types and types[0] else None
        facts = settings.node_facts(settings.user, price)
        return planned_nodes(cluster, settings, gpus=gpus, **facts)

    def offers(self, cluster: ClusterSettings, *, online: bool = True) -> Sequence[Offer]:
        settings = read_settings(cluster)
        if not online:
            return make_offers(settings, MarketFacts())
        key = json.dumps(cluster.settings, sort_keys=True)
        before = self._offers.get(key)
        if before is None or time.monotonic() > before[0] + _OFFERS_TTL_SECONDS:
            before = time.monotonic(), make_offers(settings, survey_market(settings))
            self._offers[key] = before
        return before[1]

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Returns when the machine has booted."""
        settings = read_settings(cluster)
        account = self._account(settings.region)
        found = account.instances(tagged(key=key))
        if not found:
            launcher = InstanceLauncher(account, cluster, name, key)
            try:
                found = [launcher.launch(self.offers(cluster))]
            except BaseException:
                self._unused.add((settings.region, cluster.name, cluster.lineage))
                raise
        instance_id = found[0]["InstanceId"]

        def look() -> tuple[Node, str]:
            found = account.instances({"instance-id": [instance_id]}, ANY)
            if not found or found[0]["State"]["Name"] not in LIVE:
                reason = found[0].get("StateReason", {}).get("Message", "") if found else ""
                raise NodeError(f"{instance_id} has ended while booting", reason)
            return node_of(settings, found[0]), tags_of(found[0]).get(NEXT_HOST_KEY, "")

        def tag(name: str, value: str) -> None:
            account.ec2("create_tags", Resources=[instance_id], Tags=tag_list({name: value}))

        return self.await_boot(cluster, look, tag)

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Paths are empty if the machine doesn't respond. Waits for one that was just launched."""
        settings = read_settings(cluster)
        account = self._account(settings.region)
        launched = LaunchRecord(key).read()
        seconds = LAG_SECONDS - launched[2] if launched else 0.0
        found = poll(lambda: account.instances(tagged(key=key)), seconds)
        return self.try_to_log_in(node_of(settings, found[0])) if found else None

    def read(self, node: Node) -> ResourceStatus:
        name = node.details.get("instance")
        if not name:
            return ResourceStatus.MISSING
        try:
            found = self._account(node.details["region"]).instances({"instance-id": [name]})
        except NodeUnreachable:
            return ResourceStatus.UNREACHABLE
        except NodeError:
            return ResourceStatus.FORBIDDEN
        if not found:
            return ResourceStatus.MISSING
        usable = found[0]["State"]["Name"] == "running" and node.root
        return ResourceStatus.PRESENT if usable else ResourceStatus.UNREACHABLE

    def delete(self, node: Node) -> None:
        """Returns when the machine has ended, and with the last one its groups are deleted."""
        name = node.details.get("instance")
        if not name:
            return
        account = self._account(node.details["region"])
        with ignore_refusal("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
            account.ec2("terminate_instances", InstanceIds=[name])
        by_id = {"instance-id": [name]}
        # not a waiter of boto3: those don't repeat throttled requests
        if not poll(lambda: not account.instances(by_id, NOT_ENDED), _END_SECONDS):
            raise NodeError(
                f"{name} still exists after {_END_SECONDS / 60:.0f} min",
                "Check its termination protection.",
            )
        ClusterResources(account, node.cluster, node.details["lineage"]).delete_unused()

    def list_machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        settings = read_settings(cluster)
        found = self._account(settings.region).instances({"tag-key": ["trainctl:key"]})
        return [
            Machine(
                node_of(settings, instance),
                id=instance["InstanceId"],
                lineage=tags_of(instance).get("lineage", ""),
                state=instance["State"]["Name"],
                type=instance["InstanceType"],
                zone=instance["Placement"]["AvailabilityZone"],
                launched_at=instance["LaunchTime"].timestamp(),
            )
            for instance in found
        ]

    def _account(self, region: str) -> AwsAccount:
        return self._accounts.setdefault(region, AwsAccount(region))


def node_of(settings: AwsSettings, instance: Instance) -> Node:
    """Return the node of an instance, without the paths on it."""
    tags = tags_of(instance)
    address = instance.get(f"{settings.address.title()}IpAddress") or ""
    if instance["State"]["Name"] != "running":
        address = ""  # there is no one to log in to
    details: dict[str, Any] = {
        "region": settings.region,
        "node": tags.get("node", ""),
        "instance": instance["InstanceId"],
        "type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "lineage": tags.get("lineage", ""),
        "user": settings.user,
        "port": settings.port,
        "host_key": tags.get(HOST_KEY, ""),
        **({"jump": settings.jump} if settings.jump else {}),
        "notice": {"kind": "imds"},
    }
    known = TYPES.get(instance["InstanceType"])
    return Node(
        tags.get("cluster", ""),
        tags.get("node", ""),
        address,
        key=tags.get("key", ""),
        gpus=known.gpus if known else None,
        details=details,
        **settings.node_facts(settings.user, _price(tags)),
    )


def _price(tags: Mapping[str, str]) -> float | None:
    with suppress(ValueError):  # a user has edited it
        return float(tags["price"]) if "price" in tags else None
    return None


_: type[Provider] = AwsProvider
__: type[OffersMachines] = AwsProvider
___: type[ListsMachines] = AwsProvider
