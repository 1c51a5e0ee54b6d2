"""What a cluster has in the account: groups, created with its first machine; deletion, all with the last machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from trainctl.errors import NodeError
from trainctl_aws.account import (
    CLUSTER,
    LINEAGE,
    LIVE,
    AwsAccount,
    AwsError,
    find_instances,
    id_filters,
    ignore_refusal,
    state_of,
    tag_filters,
    tag_list,
)
from trainctl_aws.settings import AwsSettings

_END_SECONDS = 900.0  # large machines shut down for minutes
_DETACH_SECONDS = 60.0
_IN_USE_SECONDS = 120.0
_PAUSE_SECONDS = 2.0


class ClusterNetwork:
    """The groups of one cluster."""

    def __init__(self, account: AwsAccount, cluster: str, lineage: str) -> None:
        self._account = account
        self._name = f"trainctl-{cluster}-{hashlib.sha256(lineage.encode()).hexdigest()[:10]}"
        self._tags = {CLUSTER: cluster, LINEAGE: lineage}
        self._filters = tag_filters(cluster=cluster, lineage=lineage)

    def ensure_security_group(self, settings: AwsSettings, vpc: str) -> str:
        """Return the cluster's own security group.

        It allows ssh from the manifest's ranges only, and everything among the machines, as EFA needs.
        """
        description = "ssh to the machines of trainctl, and anything among them"
        self._create("security-group", "InvalidGroup", Description=description, VpcId=vpc)
        filters = [*self._filters, {"Name": "vpc-id", "Values": [vpc]}]
        groups = self._account.ec2_items(
            "describe_security_groups", "SecurityGroups", Filters=filters
        )
        if not groups:
            raise AwsError(f"security group {self._name} is not visible yet", "Apply again.", "")
        name, port = groups[0]["GroupId"], settings.port
        existing = {
            str(block.get("CidrIp") or block.get("CidrIpv6"))
            for rule in groups[0].get("IpPermissions", ())
            if rule.get("FromPort") == port
            for block in (*rule.get("IpRanges", ()), *rule.get("Ipv6Ranges", ()))
        }
        wanted = {str(ip_network(text)) for text in settings.ssh_from}  # as AWS writes them
        if surplus := existing - wanted:
            self._account.ec2(
                "revoke_security_group_ingress",
                GroupId=name,
                IpPermissions=_ssh_rules(sorted(surplus), port),
            )
        if missing := wanted - existing:
            self._authorize("ingress", name, _ssh_rules(sorted(missing), port))
        among = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": name}]}]
        self._authorize("ingress", name, among)
        if settings.efa:
            self._authorize("egress", name, among)
        return str(name)

    def ensure_placement_group(self) -> str:
        """Return the name of the cluster's own placement group."""
        self._create("placement-group", "InvalidPlacementGroup", Strategy="cluster")
        return self._name

    def delete(self) -> list[str]:
        """Delete both groups; return what could not be deleted, with the reason."""
        groups = self._account.ec2_items(
            "describe_security_groups", "SecurityGroups", Filters=self._filters
        )
        left = [
            self._delete_when_unused("delete_security_group", "DependencyViolation", GroupId=name)
            for name in (group["GroupId"] for group in groups)
        ]
        by_name = [{"Name": "group-name", "Values": [self._name]}]
        if self._account.ec2("describe_placement_groups", Filters=by_name)["PlacementGroups"]:
            in_use = "InvalidPlacementGroup.InUse"
            left.append(
                self._delete_when_unused("delete_placement_group", in_use, GroupName=self._name)
            )
        return [text for text in left if text]

    def _create(self, kind: str, error: str, **parameters: str) -> None:
        """Create a group, unless it exists."""
        tags = [{"ResourceType": kind, "Tags": tag_list(self._tags)}]
        names = {"GroupName": self._name, "TagSpecifications": tags, **parameters}
        with ignore_refusal(f"{error}.Duplicate"):
            self._account.ec2(f"create_{kind.replace('-', '_')}", **names)

    def _authorize(self, direction: str, group: str, rules: Sequence[dict[str, Any]]) -> None:
        with ignore_refusal("InvalidPermission.Duplicate"):
            self._account.ec2(
                f"authorize_security_group_{direction}", GroupId=group, IpPermissions=list(rules)
            )

    def _delete_when_unused(self, action: str, in_use: str, **names: str) -> str:
        """Delete a group; wait while AWS still counts terminated machines as its users."""
        end = time.monotonic() + _IN_USE_SECONDS
        while True:
            try:
                self._account.ec2(action, **names)
            except AwsError as error:
                if error.reason.endswith((".NotFound", ".Unknown")):
                    return ""
                if error.reason != in_use or time.monotonic() > end:
                    return f"{', '.join(names.values())}: {error.summary}"
            else:
                return ""
            time.sleep(_PAUSE_SECONDS)


def _ssh_rules(ranges: Sequence[str], port: int) -> list[dict[str, Any]]:
    v4 = [{"CidrIp": text, "Description": "ssh_from"} for text in ranges if ":" not in text]
    v6 = [{"CidrIpv6": text, "Description": "ssh_from"} for text in ranges if ":" in text]
    rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port}
    return [{**rule, "IpRanges": v4, "Ipv6Ranges": v6}]


def delete_instance(account: AwsAccount, instance_id: str, cluster: str, lineage: str) -> None:
    """Terminate an instance and wait until it has ended; NodeError names what is left."""
    with ignore_refusal("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
        account.ec2("terminate_instances", InstanceIds=[instance_id])
    end, pause = time.monotonic() + _END_SECONDS, 0.25
    # not a waiter of boto3: those don't repeat throttled requests
    while found := find_instances(account, id_filters(instance_id), (*LIVE, "shutting-down")):
        if time.monotonic() > end:
            raise NodeError(
                f"{instance_id} is still {state_of(found[0])} after {_END_SECONDS / 60:.0f} min",
                "Check its termination protection.",
            )
        time.sleep(pause)
        pause = min(2 * pause, 5.0)
    delete_unused(account, cluster, lineage)


def delete_unused(account: AwsAccount, cluster: str, lineage: str) -> None:
    """Delete volumes and groups of a cluster without machines; NodeError names what is left."""
    in_cluster = tag_filters(cluster=cluster, lineage=lineage)
    if find_instances(account, in_cluster, (*LIVE, "shutting-down")):
        return
    end = time.monotonic() + _DETACH_SECONDS
    while True:
        found = account.ec2_items("describe_volumes", "Volumes", Filters=in_cluster)
        volumes = [item for item in found if item["State"] not in ("deleting", "deleted")]
        if not volumes or time.monotonic() > end:
            break
        for volume in volumes:  # they outlived their machines
            if volume["State"] == "available":
                with ignore_refusal("InvalidVolume.NotFound", "VolumeInUse"):
                    account.ec2("delete_volume", VolumeId=volume["VolumeId"])
        time.sleep(_PAUSE_SECONDS)
    left = [f"{volume['VolumeId']} is {volume['State']}" for volume in volumes]
    left += ClusterNetwork(account, cluster, lineage).delete()
    if left:
        raise NodeError(
            f"cannot delete everything of cluster {cluster} in {account.region}",
            "\n".join([*left, "Apply or destroy again, or delete them in the console."]),
        )
