"""Ending a run of which not every node can be told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainctl.base.protocol.method import UntypedMethod
from trainctl.errors import NodeUnreachable
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.operations.runs.control import stop_run
from trainctl.operations.runs.lookup import JobRun
from trainctl.plugin_api.provider import Node

LAB, JOB = Address.parse("cluster.lab"), Address.parse("job.g")
NODES = [Node("lab", f"gpu-{n}", "", "/root", "/data", "python3") for n in range(3)]
RANKS = tuple(RankRecord(n, item.id, RunStatus.RUNNING) for n, item in enumerate(NODES))
RUN = RunRecord("abc1234", 2, "key", status=RunStatus.RUNNING, ranks=RANKS, started_at=1.0)
CLUSTER = RecordedResource(LAB, "ssh", {}, {"nodes": [item.to_json() for item in NODES]})


class World:
    """A run on three nodes, of which some are away; what is noted of it."""

    def __init__(self, *away: str) -> None:
        self.away = away
        self.noted: list[RunRecord] = []
        self.told_before: list[bool] = []
        self.agents = SimpleNamespace(
            of=lambda provider, node, ephemeral: self._agent(node),
            scheduler=lambda provider: None,
        )
        self.ledger = SimpleNamespace(
            state=lambda: State(resources={LAB: CLUSTER}),
            known=lambda: State(resources={LAB: CLUSTER}),
            observe=lambda address, outputs: self.noted.append(RunRecord.from_json(outputs["run"])),
        )

    def _agent(self, node: Node) -> Any:
        def call(method: UntypedMethod, request: Any, on_event: Any = None) -> dict[str, Any]:
            self.told_before.append(self.noted[-1].stop_requested)
            if node.name in self.away:
                raise NodeUnreachable(f"{node.id} doesn't answer")
            return {"status": RunStatus.STOPPED.value, "ended_at": 2.0, "supervised": False}

        return SimpleNamespace(call=call)

    def stop(self) -> JobRun:
        """As somebody asks for it."""
        job = RecordedResource(JOB, "trainctl", {}, {})
        return stop_run(self, JobRun(job, RUN), 5.0, lambda event: None)  # type: ignore[arg-type]


def test_reachable_ranks_are_stopped_and_the_others_reported() -> None:
    """The run counts as live until all nodes have answered; that it is to stop is recorded before any is asked."""
    world = World("gpu-1")
    with pytest.raises(NodeUnreachable) as caught:
        world.stop()
    assert caught.value.summary == (
        "ranks 0, 2 are ended, and rank 1 on lab/gpu-1 couldn't be reached: it stops automatically within a minute"
    )
    assert caught.value.detail.startswith("lab/gpu-1 doesn't answer. The run is not restarted.")
    assert world.noted[-1].status is RunStatus.RUNNING
    words = [rank.status.words for rank in world.noted[-1].ranks]
    assert words == ["stopped", "running", "stopped"]

    world = World("gpu-0", "gpu-1", "gpu-2")
    with pytest.raises(NodeUnreachable, match="lab/gpu-0 doesn't answer"):
        world.stop()
    assert world.told_before == [True] * 3
    assert [run.stop_requested for run in world.noted] == [True]
    assert World().stop().record.status is RunStatus.STOPPED
