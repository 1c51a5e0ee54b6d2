"""Cost and idle time of nodes, and their quarantine, from the state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Kind
from trainctl.model.reports import NodeReport, NodeUsage
from trainctl.model.run import RunRecord
from trainctl.operations.machines.nodes import inspect_nodes
from trainctl.operations.workspace import Workspace
from trainctl.plan.validation.quarantine import CREATED, quarantined, quarantined_nodes
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import nodes_of
from trainctl.resources.runs.run_control import runs_of

WATCH_SECONDS = 2.0


def report_nodes(workspace: Workspace) -> list[NodeReport]:
    """Inspect all nodes; add quarantine, cost and idle time from the state."""
    reports = inspect_nodes(workspace)
    usage = node_usage(workspace.ledger.state(), time.time())
    return [replace(report, usage=usage.get(report.id, NodeUsage())) for report in reports]


def watch_nodes(
    workspace: Workspace, sleep: Callable[[float], None] = time.sleep
) -> Iterator[list[NodeReport]]:
    """Inspect all nodes every 2 s, until Ctrl-C."""
    while True:
        yield report_nodes(workspace)
        sleep(WATCH_SECONDS)


def node_usage(state: State, now: float) -> dict[str, NodeUsage]:
    """Return the usage of recorded nodes by id."""
    runs: dict[str, list[RunRecord]] = {}
    for address, job in state.resources.items():
        for run in runs_of(job) if address.kind is Kind.JOB else ():
            for name in {rank.node for rank in run.ranks}:
                runs.setdefault(name, []).append(run)
    lost = quarantined_nodes(state)
    usage: dict[str, NodeUsage] = {}
    for address, cluster in state.resources.items():
        for node in nodes_of(cluster) if address.kind is Kind.CLUSTER else ():
            usage[node.id] = _usage_of(cluster, node, runs.get(node.id, ()), lost.get(node.id), now)
    return usage


def _usage_of(
    cluster: RecordedResource,
    node: Node,
    runs: Sequence[RunRecord],
    reason: str | None,
    now: float,
) -> NodeUsage:
    created_at = (cluster.outputs.get(CREATED) or {}).get(node.key)
    price = node.price_per_hour
    price = cluster.cluster_spec.price_per_hour if price is None else price
    ends = [run.ended_at for run in runs if run.ended_at is not None]
    is_idle = ends and not any(run.status.live for run in runs)
    entry = quarantined(cluster).get(node.id)
    return NodeUsage(
        reason,
        entry.since if entry else None,
        entry.by if entry else None,
        created_at,
        price,
        max(0.0, now - created_at) / 3600 * price if created_at and price is not None else None,
        max(ends) if is_idle else None,
    )
