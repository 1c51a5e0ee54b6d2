"""Quarantined nodes, which get no new runs. Recorded in the outputs of their cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.json_codec import JsonSerializable
from trainctl.model.run import RunRecord, RunStatus

OUTPUT = "quarantine"
"""Output of a cluster: an entry for each node by its name, also for released ones."""

CREATED = "created"
"""Output of a cluster: when its nodes were created, in Unix seconds by key."""

LOST_RUNS = 3
"""Runs in a row that lost a node and quarantine it."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry(JsonSerializable):
    """Why and since when (Unix seconds) a node is quarantined; ``released``: until when.

    ``key`` is that of the node: another machine of its name is not quarantined.
    """

    reason: str
    since: float
    by: str
    key: str = ""
    released: float | None = None


def entries(cluster: RecordedResource) -> dict[str, QuarantineEntry]:
    """Return the entries of a cluster's nodes by node id."""
    recorded: Mapping[str, Any] = cluster.outputs.get(OUTPUT) or {}
    return {
        _node_id(cluster, node): entry
        for node in cluster.outputs.get("nodes") or ()
        if node["name"] in recorded
        and (entry := QuarantineEntry.from_json(recorded[node["name"]])).key == node.get("key", "")
    }


def quarantined(cluster: RecordedResource) -> dict[str, QuarantineEntry]:
    """Return the entries of nodes that are quarantined now."""
    return {node: entry for node, entry in entries(cluster).items() if entry.released is None}


def quarantined_nodes(state: State) -> dict[str, str]:
    """Return the reasons of all quarantined nodes by id, with those to be quarantined."""
    reasons = lost_nodes(state)
    for cluster in of_kind(state.external, Kind.CLUSTER):
        reasons |= {node: entry.reason for node, entry in quarantined(cluster).items()}
    return reasons


def lost_nodes(state: State) -> dict[str, str]:
    """Return nodes that the last three runs on them lost, if not quarantined yet, with the reason.

    Runs count since the machine was created; those of a machine that its platform took back don't.
    """
    lost = sum(run.get("status") == RunStatus.LOST for run in _recorded_runs(state))
    if lost < LOST_RUNS:
        return {}
    since: dict[str, float] = {}  # creation or release of each node
    for cluster in of_kind(state.external, Kind.CLUSTER):
        created, known = cluster.outputs.get(CREATED) or {}, entries(cluster)
        for node in cluster.outputs.get("nodes") or ():
            entry = known.get(_node_id(cluster, node))
            at = (entry.released or entry.since) if entry else 0.0
            since[_node_id(cluster, node)] = max(at, created.get(node.get("key", ""), 0.0))
    recorded = map(RunRecord.from_json, _recorded_runs(state))
    ended = [run for run in recorded if not run.status.live and not run.interrupted]
    ended.sort(key=lambda run: run.created_at or 0.0)
    counted: dict[str, list[RunRecord]] = {node: [] for node in since}
    for run in ended:
        for node in since.keys() & {rank.node for rank in run.ranks}:
            if (run.created_at or 0.0) > since[node]:
                counted[node].append(run)
    return {
        node: f"the last {LOST_RUNS} runs lost it"
        for node, runs in counted.items()
        if sum(_lost(run, node) for run in runs[-LOST_RUNS:]) == LOST_RUNS
    }


def _recorded_runs(state: State) -> Iterator[Mapping[str, Any]]:
    for job in of_kind(state.external, Kind.JOB):
        yield from job.outputs.get("runs") or ()


def _lost(run: RunRecord, node: str) -> bool:
    """Whether a run was lost because of a node."""
    blamed = [rank for rank in run.ranks if run.blamed in (None, rank.rank)]
    lost = [rank.node for rank in blamed if run.blamed is not None or rank.status is RunStatus.LOST]
    return run.status is RunStatus.LOST and node in lost


def _node_id(cluster: RecordedResource, node: Mapping[str, Any]) -> str:
    return f"{cluster.address.name}/{node['name']}"


def quarantine_error(job: Address, count: int, node: str, reason: str) -> NodeError:
    """Return the error of a job with too few nodes because one is quarantined."""
    needed = "a node" if count == 1 else f"{count} nodes"
    return NodeError(
        f"{job} needs {needed}, and {node} is quarantined: {reason}",
        f"Repair the node, then release it: trainctl nodes release {node}.",
        code="node-quarantined",
    )
