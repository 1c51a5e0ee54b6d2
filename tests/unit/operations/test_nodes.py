"""Quarantine in the state: recorded without a change of the manifest, kept by an apply, and known to ``nodes``."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_log import MemoryLog
from trainctl.errors import UsageError
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.operations.nodes import (
    find_orphans,
    node_usage,
    quarantine,
    quarantine_lost_nodes,
    record_quarantine,
    release,
)
from trainctl.operations.workspace import Workspace
from trainctl.plan.quarantine import quarantined, quarantined_nodes
from trainctl.plugin_api.machines import Machine
from trainctl.plugin_api.provider import Capabilities, ClusterSettings, Node
from trainctl.resources.clusters import kept_outputs
from trainctl_terraform import TerraformProvider

CLUSTER, JOB = Address.parse("cluster.lab"), Address.parse("job.sft")
NODES = [
    Node("lab", f"gpu-{at}", "local", "/r", "/d", "python3", f"key-{at}", price_per_hour=price)
    for at, price in enumerate((4.0, None))
]


@pytest.fixture
def workspace() -> Workspace:
    """A state with a cluster of two nodes."""
    ledger = Ledger(MemoryLog(), lambda text: text)
    outputs: dict[str, Any] = {
        "nodes": [node.to_json() for node in NODES],
        "created": {"key-0": 100.0},
    }
    put(ledger, RecordedResource(CLUSTER, "ssh", {"provider": "ssh"}, outputs))
    return cast(Workspace, SimpleNamespace(ledger=ledger))


def put(ledger: Ledger, recorded: RecordedResource) -> None:
    request = IntentRequest(recorded.address, "create", recorded.provider, "key", {})
    ledger.finish(ledger.begin(request), recorded)


def record_runs(ledger: Ledger, *statuses: RunStatus) -> None:
    """Record runs of the job on the first node, one a second."""
    runs = [
        RunRecord(
            f"id-{at}", at, f"key-{at}", status=status, ranks=(RankRecord(0, "lab/gpu-0", status),),
            created_at=200.0 + at, ended_at=None if status.live else 200.5 + at,
        ).to_json()
        for at, status in enumerate(statuses, 1)
    ]  # fmt: skip
    put(ledger, RecordedResource(JOB, "ssh", {}, {"runs": runs}))


def test_quarantine_and_release_by_hand(workspace: Workspace) -> None:
    """The cluster's version doesn't change, so that saved plans stay valid; other nodes keep their entries."""
    ledger = workspace.ledger
    version = ledger.state().versions[CLUSTER]
    quarantine(workspace, "lab/gpu-0", " a new\n fan ")
    quarantine(workspace, "lab/gpu-1", "a new disk")
    assert quarantined_nodes(ledger.state()) == {
        "lab/gpu-0": "a new fan",
        "lab/gpu-1": "a new disk",
    }
    assert release(workspace, "lab/gpu-0").id == "lab/gpu-0"
    assert quarantined_nodes(ledger.state()) == {"lab/gpu-1": "a new disk"}
    assert ledger.state().versions[CLUSTER] == version
    for unknown in ("lab/gpu-0", "lab/gpu-9", "lab"):
        with pytest.raises(UsageError):
            release(workspace, unknown)


def test_lost_runs_quarantine_a_node_until_its_release(workspace: Workspace) -> None:
    """Before and after it is recorded; the runs don't count again after the release."""
    ledger = workspace.ledger
    record_runs(ledger, RunStatus.LOST, RunStatus.LOST)
    assert quarantine_lost_nodes(ledger) == {}
    record_runs(ledger, *[RunStatus.LOST] * 3)
    assert [*quarantined_nodes(ledger.state())] == ["lab/gpu-0"]
    assert release(workspace, "lab/gpu-0").id == "lab/gpu-0"
    assert quarantine_lost_nodes(ledger) == quarantined_nodes(ledger.state()) == {}


def test_an_apply_of_the_cluster_keeps_quarantine_and_times_of_creation(
    workspace: Workspace,
) -> None:
    """New nodes get their time, imported ones none."""
    record_quarantine(workspace.ledger, CLUSTER, "lab/gpu-0", "ECC errors")
    cluster = workspace.ledger.recorded(CLUSTER)
    assert cluster is not None
    new = Node("lab", "gpu-2", "local", "/r", "/d", "python3", "key-2")
    kept = kept_outputs(cluster, [*NODES, new], 500.0)
    assert kept["created"] == {"key-0": 100.0, "key-2": 500.0}
    after = RecordedResource(CLUSTER, "ssh", {}, {"nodes": cluster.outputs["nodes"], **kept})
    assert [*quarantined(after)] == ["lab/gpu-0"]
    assert kept_outputs(None, [new], 7.0) == {"created": {"key-2": 7.0}}


def test_cost_and_idle_time(workspace: Workspace) -> None:
    """From creation until now; a node with a live run is not idle."""
    record_runs(workspace.ledger, RunStatus.COMPLETED, RunStatus.FAILED)
    first, second = node_usage(workspace.ledger.state(), 100.0 + 1800).values()
    assert (first.cost, first.idle_since, first.price_per_hour) == (2.0, 202.5, 4.0)
    assert (second.cost, second.idle_since, second.created_at) == (None, None, None)
    record_runs(workspace.ledger, RunStatus.COMPLETED, RunStatus.RUNNING)
    assert node_usage(workspace.ledger.state(), 0.0)["lab/gpu-0"].idle_since is None


def test_orphans_are_those_of_providers_that_list_machines(workspace: Workspace) -> None:
    """Another one is noted; a provider with records has none if the state can't have any."""

    class WithRecords(TerraformProvider):
        def list_machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
            raise UsageError("no records")

    notes: list[str] = []
    others = SimpleNamespace(capabilities=Capabilities(creates_machines=True))
    providers = {"terraform": WithRecords()}
    vars(workspace).update(
        desired=SimpleNamespace(external={}),
        notify=notes.append,
        provider=lambda name: providers.get(name, others),
    )
    assert find_orphans(workspace) == []
    assert notes == ["Provider ssh can't list its machines."]
