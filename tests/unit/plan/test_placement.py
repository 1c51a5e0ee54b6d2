"""Which nodes a run gets."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.plans import NODE, with_facts
from trainctl.base.protocol.host import FreeGpu
from trainctl.base.protocol.weights import CacheQueryResponse
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import Compute
from trainctl.plan.placement import (
    NodeOffer,
    SpaceAvailability,
    assign_nodes,
    reserve,
    with_note,
)
from trainctl.plan.values import Change, PlanInputs

GIB = 2**30
SPACE: CacheQueryResponse = {"trees": [], "blobs": [], "room": 5, "most": 9}
ONE_GPU = Compute(accelerator="H100:1")


def offer(node: str, *kinds: str, busy: int = 0, **facts: Any) -> NodeOffer:
    """A node with GPUs of these kinds, the first ones of them in use."""
    gpus: list[FreeGpu] = [
        {"name": kind, "is": [kind], "free": number >= busy} for number, kind in enumerate(kinds)
    ]
    return NodeOffer(node, gpus, **facts)


SMALL_GPU = [offer("a"), offer("b", "A100"), offer("c", "H100", "H100")]
CPU_NODES = [
    NodeOffer("a", cpus=8, memory=58 * GIB),
    NodeOffer("b", cpus=4, memory=128 * GIB),
    NodeOffer("unknown"),
]
LATER, NEVER = SpaceAvailability.LATER, SpaceAvailability.NEVER


@pytest.mark.parametrize(
    ("compute", "offers", "nodes"),
    [
        (Compute(accelerator="H100:2"), SMALL_GPU, "c"),
        (Compute(2, accelerator="H100:2"), SMALL_GPU, "c"),
        (Compute(accelerator="A100:2"), SMALL_GPU, ""),
        (Compute(memory="64Gi", cpu_count=8), CPU_NODES[:2], "a"),  # a tenth may be missing
        (Compute(memory="65Gi"), CPU_NODES[:2], "b"),
        (Compute(memory="65Gi", cpu_count=8), CPU_NODES, "unknown"),
        (Compute(memory="1Ti"), CPU_NODES[:2], ""),
        # Free GPUs count before bytes, bytes before few runs, and then the declared order.
        (
            ONE_GPU,
            [offer("a", "H100", busy=1, bytes_there=9), offer("b", "H100"), offer("c", "H100", runs=3, bytes_there=5)],
            "c",
        ),
        (ONE_GPU, [offer("a", "H100", busy=1, bytes_there=9), offer("b", "H100")], "b"),
        (Compute(), [NodeOffer("a", runs=1), NodeOffer("b"), NodeOffer("c")], "b"),
        (Compute(), [NodeOffer("a"), NodeOffer("b")], "a"),
        (ONE_GPU, [offer("a", "H100", busy=1, runs=2), offer("b", "H100", busy=1, runs=1)], "b"),
        # Space for weights counts before bytes; a node that will never have it comes last.
        (ONE_GPU, [offer("a", "H100", bytes_there=9, space=LATER), offer("b", "H100", runs=3)], "b"),
        (ONE_GPU, [offer("a", "H100", busy=1), offer("b", "H100", space=LATER)], "b"),
        (ONE_GPU, [offer("a", "H100", space=NEVER), offer("b", "H100", busy=1)], "b"),
        (ONE_GPU, [offer("a", "H100", space=NEVER)], "a"),
        # Ranks are numbered in the declared order.
        (
            Compute(2),
            [NodeOffer("a", bytes_there=1), NodeOffer("b", runs=1), NodeOffer("c", bytes_there=2)],
            "a c",
        ),
        # Unreachable nodes are taken in the declared order.
        (Compute(2, accelerator="H100:8"), [NodeOffer(name, gpus=None) for name in "abc"], "a b"),
    ],
)  # fmt: skip
def test_the_best_nodes_are_chosen(compute: Compute, offers: list[NodeOffer], nodes: str) -> None:
    assert assign_nodes(compute, offers) == tuple(nodes.split())


def test_space_for_weights() -> None:
    """Next to live runs, without them, or never; unknown space is enough."""
    assert SpaceAvailability.of(5, 9, SPACE) is SpaceAvailability.NOW
    assert SpaceAvailability.of(6, 9, SPACE) is LATER
    assert SpaceAvailability.of(0, 10, SPACE) is NEVER
    assert SpaceAvailability.of(6, 9, {"trees": [], "blobs": []}) is SpaceAvailability.NOW


def test_two_runs_of_one_apply_get_a_gpu_each() -> None:
    offers = [offer("a", "H100"), offer("b", "H100")]
    assert assign_nodes(ONE_GPU, offers) == ("a",)
    assert assign_nodes(ONE_GPU, [reserve(offers[0], ONE_GPU), offers[1]]) == ("b",)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5), st.integers(1, 4))
def test_no_node_is_chosen_twice(facts: list[tuple[int, int]], count: int) -> None:
    offers = [NodeOffer(str(number), (), *pair) for number, pair in enumerate(facts)]
    chosen = assign_nodes(Compute(count), offers)
    assert len(chosen) == len(set(chosen)) == min(count, len(offers))
    assert list(chosen) == sorted(chosen, key=int)


@pytest.mark.parametrize(
    ("action", "accelerator", "usable", "note"),
    [
        (Action.CREATE, None, 2, "why; claims all GPUs of its node: 2"),
        (Action.REPLACE, None, 2, "why; claims all GPUs of its node: 2"),
        (Action.CREATE, None, 0, "why"),
        (Action.CREATE, "H100:1", 2, "why"),
        (Action.NOOP, None, 2, "why"),
    ],
)
def test_a_new_run_without_an_accelerator_claims_all_gpus(
    action: Action, accelerator: str | None, usable: int, note: str
) -> None:
    cluster, job = Address.parse("cluster.box"), Address.parse("job.fit")
    gpu = {"name": "H100", "is": []}
    node = with_facts(NODE, id="box/0", gpus=[gpu] * usable)
    nothing = cast("Any", None)
    placements = {job: ("box/0",)}
    inputs = PlanInputs(nothing, nothing, nodes={cluster: (node,)}, rank_placements=placements)
    after = {"cluster": "box", "compute": {"accelerator": accelerator}}
    change = Change(job, action, "", after=after, note="why")
    assert with_note(inputs, change).note == note
