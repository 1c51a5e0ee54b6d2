"""Tags that say to which cluster an instance belongs, and queries by them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from trainctl_aws.account import AwsAccount

LINEAGE, CLUSTER, NODE, KEY = (
    "trainctl:lineage",
    "trainctl:cluster",
    "trainctl:node",
    "trainctl:key",
)
HOST_KEY, PRICE = "trainctl:host-key", "trainctl:price"
NEXT_HOST_KEY = "trainctl:next-host-key"
LIVE = ("pending", "running", "stopping", "stopped")
"""States of instances that exist."""

Instance = dict[str, Any]
"""An instance as DescribeInstances returns it."""


def tag_list(values: dict[str, str]) -> list[dict[str, str]]:
    """Return tags in AWS's form."""
    return [{"Key": key, "Value": value} for key, value in values.items()]


def tags_of(resource: Instance) -> dict[str, str]:
    """Return the tags of an instance or another resource."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def state_of(instance: Instance) -> str:
    """Return the state, such as ``running``."""
    return str(instance["State"]["Name"])


def tag_filters(**tags: str) -> list[dict[str, Any]]:
    """Return filters for resources with these values of ``trainctl:NAME``."""
    return [{"Name": f"tag:trainctl:{name}", "Values": [value]} for name, value in tags.items()]


def find_instances(
    account: AwsAccount, filters: Sequence[dict[str, Any]], states: Sequence[str] = LIVE
) -> list[Instance]:
    """Return the instances that match, the oldest first."""
    by_state = {"Name": "instance-state-name", "Values": list(states)}
    filters = [*filters, by_state]
    pages = account.ec2_items("describe_instances", "Reservations", Filters=filters)
    found = [instance for page in pages for instance in page["Instances"]]
    return sorted(found, key=lambda instance: (instance["LaunchTime"], instance["InstanceId"]))


def resource_name(cluster: str, lineage: str) -> str:
    """Return the name of the security group and of the placement group of a cluster."""
    return f"trainctl-{cluster}-{hashlib.sha256(lineage.encode()).hexdigest()[:10]}"
