"""What a cluster has in the account: groups, created with its first machine, deleted with the last."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from ipaddress import ip_network
from typing import Any

from trainctl.errors import NodeError, NodeUnreachable
from trainctl_aws.account import (
    NOT_ENDED,
    AwsAccount,
    AwsError,
    ignore_refusal,
    tag_list,
    tagged,
)
from trainctl_aws.settings import AwsSettings

_DELETABLE = {
    "volume": "VolumeId",  # one that outlived its machine
    "security_group": "GroupId",
    "placement_group": "GroupName",
}
"""Names by kind."""


class ClusterResources:
    """What one cluster has besides instances."""

    def __init__(self, account: AwsAccount, cluster: str, lineage: str) -> None:
        self._account, self._cluster = account, cluster
        self._name = f"trainctl-{cluster}-{hashlib.sha256(lineage.encode()).hexdigest()[:10]}"
        self._tags = {"cluster": cluster, "lineage": lineage}
        self._filters = tagged(**self._tags)

    def ensure_security_group(self, settings: AwsSettings, vpc: str) -> str:
        """Return the cluster's own security group.

        It allows ssh from the manifest's ranges only, and everything among the machines, as EFA needs.
        """
        description = "ssh to the machines of trainctl, and anything among them"
        self._create("security_group", Description=description, VpcId=vpc)
        groups = self._account.describe("security_groups", {**self._filters, "vpc-id": [vpc]})
        if not groups:
            raise NodeUnreachable(f"security group {self._name} is not visible yet", "Apply again.")
        name, port = groups[0]["GroupId"], settings.port
        existing = {
            str(block.get("CidrIp") or block.get("CidrIpv6"))
            for rule in groups[0].get("IpPermissions", ())
            if rule.get("FromPort") == port
            for block in (*rule.get("IpRanges", ()), *rule.get("Ipv6Ranges", ()))
        }
        wanted = {str(ip_network(text)) for text in settings.ssh_from}  # as AWS writes them
        if surplus := existing - wanted:
            rules = _ssh_rules(surplus, port)
            self._account.ec2("revoke_security_group_ingress", GroupId=name, IpPermissions=rules)
        if missing := wanted - existing:
            self._authorize("ingress", name, _ssh_rules(missing, port))
        among = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": name}]}]
        self._authorize("ingress", name, among)
        if settings.efa:
            self._authorize("egress", name, among)
        return str(name)

    def ensure_placement_group(self) -> str:
        """Return the name of the cluster's own placement group."""
        self._create("placement_group", Strategy="cluster")
        return self._name

    def delete_unused(self) -> None:
        """Delete all unless the cluster has machines; NodeError names what is left."""
        if self._account.instances(self._filters, NOT_ENDED):
            return
        left = []
        for kind, name in _DELETABLE.items():
            for item in self._account.describe(f"{kind}s", self._filters):
                try:
                    self._account.ec2(f"delete_{kind}", **{name: item[name]})
                except AwsError as error:
                    if not error.reason.endswith((".NotFound", ".Unknown")):
                        left.append(f"{item[name]}: {error.summary}")
        if left:
            raise NodeError(
                f"cannot delete everything of cluster {self._cluster} in {self._account.region}",
                "\n".join([*left, "Apply or destroy again, or delete them in the console."]),
            )

    def _create(self, kind: str, **parameters: str) -> None:
        """Create a group, unless it exists."""
        tags = [{"ResourceType": kind.replace("_", "-"), "Tags": tag_list(self._tags)}]
        names = {"GroupName": self._name, "TagSpecifications": tags, **parameters}
        with ignore_refusal("InvalidGroup.Duplicate", "InvalidPlacementGroup.Duplicate"):
            self._account.ec2(f"create_{kind}", **names)

    def _authorize(self, direction: str, group: str, rules: list[dict[str, Any]]) -> None:
        action = f"authorize_security_group_{direction}"
        with ignore_refusal("InvalidPermission.Duplicate"):
            self._account.ec2(action, GroupId=group, IpPermissions=rules)


def _ssh_rules(ranges: Collection[str], port: int) -> list[dict[str, Any]]:
    v4 = [{"CidrIp": text, "Description": "ssh_from"} for text in ranges if ":" not in text]
    v6 = [{"CidrIpv6": text, "Description": "ssh_from"} for text in ranges if ":" in text]
    rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port}
    return [{**rule, "IpRanges": v4, "Ipv6Ranges": v6}]
