"""Who gets which nodes when an apply's runs are placed in any order."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainctl.base.protocol.method import UntypedMethod
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import Compute
from trainctl.plan.placement import PlannedRun
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents
from trainctl.resources.placement import RunPlacer
from trainctl.store.store import MirrorStore

NODES = [Node("lab", f"gpu-{at}", "local", "/root", "/data", "python3") for at in range(3)]
GANG, SINGLE = Address.parse("job.gang"), Address.parse("job.single")
WANTED = {GANG: Compute(2, accelerator="H100:1"), SINGLE: Compute(accelerator="H100:2")}


def seating(*planned: str, busy: str = "") -> RunPlacer:
    """Of three hosts with two GPUs each, all free but those of one; the plan has the gang on some of them."""

    def call(
        node: Node, method: UntypedMethod, request: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        gpus = [{"name": "H100", "is": ["H100"], "free": node.id != busy}] * 2
        more = {"cpus": 8, "memory": 2**33, "cached": {"trees": [], "blobs": []}}
        return {"gpus": gpus, "live": [], "nodes": None, **more}

    agents = SimpleNamespace(
        of=lambda _, node: SimpleNamespace(call=lambda *a, **k: call(node, *a, **k))
    )
    runs = {
        GANG: PlannedRun(WANTED[GANG], frozenset(planned)),
        SINGLE: PlannedRun(WANTED[SINGLE], frozenset()),
    }
    return RunPlacer(cast(Agents, agents), cast(MirrorStore, None), runs)


def place_run(made: RunPlacer, job: Address) -> list[str]:
    outputs = {"nodes": [node.to_json() for node in NODES]}
    cluster = RecordedResource(Address.parse("cluster.lab"), "ssh", {}, outputs)
    return [one.id for one in made.place_run(cluster, job, f"key-{job.name}", WANTED[job], [])]


@pytest.mark.parametrize("order", [(GANG, SINGLE), (SINGLE, GANG)], ids=["first", "last"])
def test_whoever_is_ready_first_leaves_the_others_what_was_planned(
    order: tuple[Address, ...],
) -> None:
    """A job without weights is ready before those that have some: it doesn't take the nodes that the plan has them on."""
    made = seating("lab/gpu-0", "lab/gpu-1")
    found = {job: place_run(made, job) for job in order}
    assert found == {GANG: ["lab/gpu-0", "lab/gpu-1"], SINGLE: ["lab/gpu-2"]}


def test_a_node_that_is_taken_meanwhile_is_not_waited_for() -> None:
    """What the plan had is a preference among nodes that are free."""
    assert place_run(seating("lab/gpu-1", "lab/gpu-2"), GANG) == ["lab/gpu-1", "lab/gpu-2"]
    assert place_run(seating("lab/gpu-0", "lab/gpu-1", busy="lab/gpu-0"), GANG) == [
        "lab/gpu-1",
        "lab/gpu-2",
    ]
