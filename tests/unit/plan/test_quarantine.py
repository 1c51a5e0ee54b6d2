"""Which nodes are quarantined: by an entry in the state, or by three runs that lost them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainctl.base.protocol import INTERRUPTED
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.plan.quarantine import (
    QuarantineEntry,
    entries,
    lost_nodes,
    quarantined,
    quarantined_nodes,
)
from trainctl.plugin_api.provider import Node

CLUSTER = Address.parse("cluster.lab")
NODES = [
    Node("lab", f"gpu-{at}", "local", "/root", "/data", "python3", f"key-{at}") for at in (0, 1)
]
LOST, COMPLETED = RunStatus.LOST, RunStatus.COMPLETED


def cluster(**quarantine: QuarantineEntry) -> RecordedResource:
    """A cluster of two nodes; entries by name, with ``_`` for ``-``."""
    named = {name.replace("_", "-"): entry.to_json() for name, entry in quarantine.items()}
    nodes = [node.to_json() for node in NODES]
    outputs = {"nodes": nodes, **({"quarantine": named} if named else {})}
    return RecordedResource(CLUSTER, "ssh", {}, outputs)


def state(recorded: RecordedResource, *runs: RunRecord) -> State:
    """A state with this cluster, and a job with these runs."""
    job = Address.parse("job.sft")
    outputs = {"runs": [run.to_json() for run in runs]}
    return State(resources={CLUSTER: recorded, job: RecordedResource(job, "ssh", {}, outputs)})


def run(number: int, status: RunStatus = LOST, *, blamed: int | None = None) -> RunRecord:
    """A run on both nodes."""
    ended = status if blamed is None else RunStatus.STOPPED
    ranks = [RankRecord(at, f"lab/gpu-{at}", ended) for at in (0, 1)]
    return RunRecord(
        f"id-{number}", number, f"key-{number}", status=status, ranks=tuple(ranks),
        created_at=float(number), ended_at=number + 0.5, blamed=blamed,
    )  # fmt: skip


def entry(key: str = "key-0", released: float | None = None) -> QuarantineEntry:
    return QuarantineEntry("ECC errors", 10.0, "me@here", key, released)


def test_only_current_entries_of_the_same_machine_count() -> None:
    """Not released ones, nor those of a machine that was replaced."""
    assert quarantined(cluster()) == {}
    assert quarantined(cluster(gpu_0=entry())) == {"lab/gpu-0": entry()}
    released = cluster(gpu_0=entry(released=20.0))
    assert [*entries(released)] == ["lab/gpu-0"]
    assert quarantined(released) == {}
    assert entries(cluster(gpu_0=entry("other"), gpu_9=entry())) == {}
    assert quarantined_nodes(state(cluster(gpu_0=entry()))) == {"lab/gpu-0": "ECC errors"}


@pytest.mark.parametrize(
    ("runs", "nodes"),
    [
        ([run(1, blamed=1), run(2, blamed=1), run(3, blamed=1)], ["lab/gpu-1"]),
        ([run(1, blamed=1), run(2, blamed=1)], []),
        ([run(1, blamed=1), run(2, blamed=0), run(3, blamed=1)], []),
        ([run(1, blamed=1), run(2, COMPLETED), run(3, blamed=1), run(4, blamed=1)], []),
        ([run(1, COMPLETED), run(2), run(3), run(4)], ["lab/gpu-0", "lab/gpu-1"]),
        ([run(1), run(2), run(3), run(4, RunStatus.RUNNING)], ["lab/gpu-0", "lab/gpu-1"]),
    ],
)
def test_three_lost_runs_in_a_row_quarantine_the_blamed_node(
    runs: list[RunRecord], nodes: list[str]
) -> None:
    recorded = state(cluster(), *runs)
    expected = dict.fromkeys(nodes, "the last 3 runs lost it")
    assert lost_nodes(recorded) == quarantined_nodes(recorded) == expected


def test_runs_before_a_release_do_not_count() -> None:
    """Otherwise a released node would be quarantined again at once."""
    lost = [run(number, blamed=0) for number in range(1, 7)]
    assert lost_nodes(state(cluster(gpu_0=entry(released=4.5)), *lost)) == {}
    assert [*lost_nodes(state(cluster(gpu_0=entry(released=3.5)), *lost))] == ["lab/gpu-0"]


def test_lost_machines_of_a_platform_do_not_count() -> None:
    """Runs of a machine that its platform took back, or before another machine was created."""
    lost = [run(number, blamed=0) for number in range(1, 5)]
    taken = [replace(run, error=f"rank 0: {INTERRUPTED}") for run in lost]
    assert lost_nodes(state(cluster(), *taken)) == {}
    assert [*lost_nodes(state(cluster(), taken[0], *lost[1:]))] == ["lab/gpu-0"]
    recreated = cluster()
    outputs = {**recreated.outputs, "created": {"key-0": 2.5}}
    assert lost_nodes(state(replace(recreated, outputs=outputs), *lost)) == {}


def test_lost_nodes_take_time_by_runs_not_by_runs_times_nodes() -> None:
    """A cluster can have hundreds of nodes, and a state thousands of runs."""
    compared = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

    nodes = [replace(NODES[0], name=f"n{at}").to_json() for at in range(50)]
    ranks = [(RankRecord(0, Name(f"lab/n{at % 50}"), LOST),) for at in range(150)]
    runs = [replace(run(at + 1), ranks=of_run) for at, of_run in enumerate(ranks)]
    recorded = RecordedResource(CLUSTER, "ssh", {}, {"nodes": nodes})
    assert len(lost_nodes(state(recorded, *runs))) == 50
    assert len(compared) <= 2000
