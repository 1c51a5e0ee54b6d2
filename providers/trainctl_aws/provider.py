"""Provider of nodes on EC2 instances; see DESIGN.md."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    CLUSTER,
    HOST_KEY,
    KEY,
    LINEAGE,
    LIVE,
    NEXT_HOST_KEY,
    NODE,
    PRICE,
    AwsAccount,
    Instance,
    find_instances,
    id_filters,
    state_of,
    tag_filters,
    tag_list,
    tags_of,
)
from trainctl_aws.catalog import TYPES
from trainctl_aws.cluster_resources import delete_instance, delete_unused
from trainctl_aws.launch import InstanceLauncher, LaunchRecord, find_by_key
from trainctl_aws.offers import NO_FACTS, make_offers, survey_market
from trainctl_aws.settings import AwsSettings, find_problems, read_settings
from trainctl_ssh.machines import SshMachines, planned_nodes

_SURVEY_SECONDS = 3.0
_OFFERS_TTL_SECONDS = 60.0
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
        self._counting = threading.Lock()
        self._accounts: dict[str, AwsAccount] = {}
        self._launches: Counter[tuple[str, str]] = Counter()
        self._offers: dict[str, tuple[float, list[Offer]]] = {}

    def close(self) -> None:
        super().close()
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
        settings, key = read_settings(cluster), json.dumps(cluster.settings, sort_keys=True)
        if not online:
            return make_offers(settings, NO_FACTS)
        before = self._offers.get(key)
        if before is not None and time.monotonic() < before[0] + _OFFERS_TTL_SECONDS:
            return before[1]
        account = AwsAccount(settings.region, retry_seconds=_SURVEY_SECONDS)
        offers = make_offers(settings, survey_market(account, settings))
        self._offers[key] = time.monotonic(), offers
        return offers

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Returns when the machine has booted."""
        settings = read_settings(cluster)
        account = self._account(settings.region)
        found = find_instances(account, tag_filters(key=key))
        if not found:
            launcher = InstanceLauncher(account, cluster, name, key)
            with self._deleting_unused(account, cluster):
                found = [launcher.launch(self.offers(cluster))]
        instance_id = found[0]["InstanceId"]

        def look() -> tuple[Node, str]:
            found = find_instances(account, id_filters(instance_id), ANY)
            if not found or state_of(found[0]) not in LIVE:
                reason: Mapping[str, str] = (found[0].get("StateReason") or {}) if found else {}
                raise NodeError(
                    f"{instance_id} has ended while booting",
                    f"{reason.get('Code', '')}: {reason.get('Message', '')}" if reason else "",
                )
            return node_of(settings, found[0]), tags_of(found[0]).get(NEXT_HOST_KEY, "")

        def tag(name: str, value: str) -> None:
            tags = tag_list({f"trainctl:{name}": value})
            account.ec2("create_tags", Resources=[instance_id], Tags=tags)

        return self.await_boot(cluster, look, tag)

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Paths are empty if the machine doesn't respond."""
        settings = read_settings(cluster)
        account = self._account(settings.region)
        instance = find_by_key(account, key, LaunchRecord(key))
        return None if instance is None else self.try_to_log_in(node_of(settings, instance))

    def existing(self, cluster: ClusterSettings) -> Iterator[Node]:
        """Return the nodes of all instances of a cluster, without paths."""
        settings = read_settings(cluster)
        lineage = {"lineage": cluster.lineage} if cluster.lineage else {}
        filters = tag_filters(cluster=cluster.name, **lineage)
        found = find_instances(self._account(settings.region), filters)
        return (node_of(settings, item) for item in found)

    def read(self, node: Node) -> ResourceStatus:
        name = node.details.get("instance")
        if not name:
            return ResourceStatus.MISSING
        try:
            found = find_instances(self._account(node.details["region"]), id_filters(name))
        except NodeUnreachable:
            return ResourceStatus.UNREACHABLE
        except NodeError:
            return ResourceStatus.FORBIDDEN
        if not found:
            return ResourceStatus.MISSING
        usable = state_of(found[0]) == "running" and node.root
        return ResourceStatus.PRESENT if usable else ResourceStatus.UNREACHABLE

    def delete(self, node: Node) -> None:
        """Returns when the machine has ended."""
        if node.details.get("instance"):
            details = node.details
            account = self._account(details["region"])
            delete_instance(account, details["instance"], node.cluster, details["lineage"])

    def machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        region = read_settings(cluster).region
        by_tag = [{"Name": "tag-key", "Values": [KEY]}]
        found = find_instances(self._account(region), by_tag)
        return [
            Machine(
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
            for instance, tags in ((instance, tags_of(instance)) for instance in found)
        ]

    def _account(self, region: str) -> AwsAccount:
        return self._accounts.setdefault(region, AwsAccount(region))

    @contextmanager
    def _deleting_unused(self, account: AwsAccount, cluster: ClusterSettings) -> Iterator[None]:
        """Delete the groups of a cluster after a launch that failed, unless other launches need them."""
        owner = (cluster.name, cluster.lineage)
        with self._counting:
            self._launches[owner] += 1
        failed = True
        try:
            yield
            failed = False
        finally:
            with self._counting:
                self._launches[owner] -= 1
                failed = failed and not self._launches[owner]
            if failed:
                with suppress(NodeError):
                    delete_unused(account, *owner)


def node_of(settings: AwsSettings, instance: Instance) -> Node:
    """Return the node of an instance, without the paths on it."""
    tags = tags_of(instance)
    address = instance.get(f"{settings.address.title()}IpAddress") or ""
    if state_of(instance) != "running":
        address = ""  # there is no one to log in to
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
    known = TYPES.get(instance["InstanceType"])
    return Node(
        tags.get(CLUSTER, ""),
        tags.get(NODE, ""),
        address,
        key=tags.get(KEY, ""),
        gpus=known.gpus if known else None,
        details=details,
        **settings.node_facts(settings.user, _number(tags.get(PRICE, ""))),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_: type[Provider] = AwsProvider
__: type[OffersMachines] = AwsProvider
___: type[ListsMachines] = AwsProvider
