"""What the machines of a plan's new runs cost."""

from __future__ import annotations

from collections.abc import Iterable, Set

from trainctl.model.address import Address, Kind
from trainctl.plan.runs import node_count
from trainctl.plan.seats import starting
from trainctl.plan.values import Change, Inputs


def hourly_cost(inputs: Inputs, changes: Iterable[Change]) -> float:
    """Price per hour of the nodes that new runs use, in the currency of the manifest; a node is paid for once.

    A rank whose node isn't known yet counts as the cheapest of those that are left.
    """
    used: dict[Address, set[str]] = {}
    unknown: dict[Address, int] = {}
    for job in starting(changes):
        after = job.after or {}
        cluster = Address(Kind.CLUSTER, str(after.get("cluster")))
        seats = inputs.seats.get(job.address, ())
        used.setdefault(cluster, set()).update(seats)
        more = node_count(after.get("compute")) - len(seats)
        unknown[cluster] = unknown.get(cluster, 0) + more
    return round(sum(_of_cluster(inputs, *one, unknown[one[0]]) for one in used.items()), 6)


def _of_cluster(inputs: Inputs, cluster: Address, used: Set[str], unknown: int) -> float:
    resource = inputs.desired.resources.get(cluster)
    declared = resource.attributes.get("price_per_hour") if resource else None
    usual = float(declared) if isinstance(declared, int | float) else 0.0
    nodes = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    left = sorted(inputs.prices.get(node, usual) for node in nodes if node not in used)
    known = sum(inputs.prices.get(node, usual) for node in used)
    return known + (sum(left[:unknown]) if nodes else usual * unknown)
