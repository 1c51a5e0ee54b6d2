"""Quarantine nodes, so that they get no new runs, and release them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from trainctl.errors import UsageError
from trainctl.ledger.leases import current_holder
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.operations.machines.nodes import recorded_node
from trainctl.operations.workspace import Workspace
from trainctl.plan.quarantine import (
    OUTPUT,
    QuarantineEntry,
    entries,
    lost_nodes,
    quarantined,
)
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import node_named


def quarantine(workspace: Workspace, name: str, reason: str) -> Node:
    """Quarantine a node (``CLUSTER/NODE``); live runs on it continue."""
    if not reason.strip():
        raise UsageError("--reason is empty", "Name the reason, e.g. --reason 'ECC errors'.")
    cluster, node = recorded_node(workspace.ledger.state(), name)
    record_quarantine(workspace.ledger, cluster.address, node.id, " ".join(reason.split()))
    return node


def release(workspace: Workspace, name: str) -> Node:
    """Release a quarantined node; UsageError if it isn't quarantined."""
    quarantine_lost_nodes(workspace.ledger)
    cluster, node = recorded_node(workspace.ledger.state(), name)
    entry = quarantined(cluster).get(node.id)
    if entry is None:
        raise UsageError(f"node {name} is not quarantined", "List nodes: trainctl nodes.")
    _record(workspace.ledger, cluster, node, replace(entry, released=time.time()))
    return node


def record_quarantine(ledger: Ledger, address: Address, node_id: str, reason: str) -> None:
    """Record that a node is quarantined; nothing if it is not in the state."""
    cluster = ledger.recorded(address)
    node = node_named(cluster, node_id) if cluster else None
    if cluster is not None and node is not None:
        actor = current_holder().actor
        _record(ledger, cluster, node, QuarantineEntry(reason, time.time(), actor, node.key))


def quarantine_lost_nodes(ledger: Ledger) -> Mapping[str, str]:
    """Quarantine nodes that the last runs on them lost; return their reasons by id."""
    lost = lost_nodes(ledger.state())
    for node, reason in lost.items():
        record_quarantine(ledger, Address(Kind.CLUSTER, node.partition("/")[0]), node, reason)
    return lost


def _record(ledger: Ledger, cluster: RecordedResource, node: Node, entry: QuarantineEntry) -> None:
    known = {name.partition("/")[2]: value for name, value in entries(cluster).items()}
    recorded = {name: value.to_json() for name, value in {**known, node.name: entry}.items()}
    ledger.observe(cluster.address, {OUTPUT: recorded})
    event = f"quarantined: {entry.reason}"
    if entry.released is not None:
        event = "released from quarantine"
    ledger.note(f"{node.id} {event}", cluster.address)
