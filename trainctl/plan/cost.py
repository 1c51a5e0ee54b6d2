"""What the machines of a plan's new runs cost."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.model.address import Address, Kind
from trainctl.plan.runs import node_count
from trainctl.plan.seats import starting
from trainctl.plan.values import Change, Inputs


def hourly_cost(inputs: Inputs, changes: Iterable[Change]) -> float:
    """Price per hour of the nodes that new runs use, in the currency of the manifest; a node is paid for once."""
    nodes: dict[Address, int] = {}
    for job in starting(changes):
        after = job.after or {}
        cluster = Address(Kind.CLUSTER, str(after.get("cluster")))
        nodes[cluster] = nodes.get(cluster, 0) + node_count(after.get("compute"))
    return round(sum(_of_cluster(inputs, cluster, count) for cluster, count in nodes.items()), 6)


def _of_cluster(inputs: Inputs, cluster: Address, count: int) -> float:
    resource = inputs.desired.resources.get(cluster)
    price = resource.attributes.get("price_per_hour") if resource else None
    if not isinstance(price, int | float):
        return 0.0
    names = inputs.node_names.get(cluster)
    return float(price) * (min(count, len(names)) if names else count)
