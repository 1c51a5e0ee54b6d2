"""Which nodes a run gets."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.specs.job_spec import ComputeSpec
from trainctl.plan.placement import (
    NodeOffer,
    SpaceAvailability,
    assign_nodes,
    note_claimed_gpus,
    reserve,
)
from trainctl.plan.values import Change, GpuFacts, NodeFacts, PlanInputs


def gpus(*kinds: str, busy: int = 0) -> tuple[GpuFacts, ...]:
    """GPUs of these kinds, the first ``busy`` of them in use."""
    return tuple(GpuFacts(kind, (kind,), at >= busy) for at, kind in enumerate(kinds))


def wanting(nodes: int, accelerator: str | None = None) -> ComputeSpec:
    """Nodes with so many GPUs each, or all that they have."""
    return ComputeSpec(nodes, accelerator=accelerator)


def test_what_the_run_can_never_have_is_no_choice() -> None:
    """Nodes without the GPUs that are wanted are left out, even if that leaves too few."""
    offers = [NodeOffer("a"), NodeOffer("b", gpus("A100")), NodeOffer("c", gpus("H100", "H100"))]
    assert assign_nodes(wanting(1, "H100:2"), offers) == ("c",)
    assert assign_nodes(wanting(2, "H100:2"), offers) == ("c",)
    assert assign_nodes(wanting(1, "A100:2"), offers) == ()


def test_a_machine_that_is_too_small_is_no_choice() -> None:
    """By processors and by memory, of which a tenth may be missing; what is not known is taken for enough."""
    gib = 2**30
    offers = [
        NodeOffer("a", cpus=8, memory=58 * gib),
        NodeOffer("b", cpus=4, memory=128 * gib),
        NodeOffer("c"),
    ]
    assert assign_nodes(ComputeSpec(memory="64Gi", cpu_count=8), offers[:2]) == ("a",)
    assert assign_nodes(ComputeSpec(memory="65Gi"), offers[:2]) == ("b",)
    assert assign_nodes(ComputeSpec(memory="65Gi", cpu_count=8), offers) == ("c",)
    assert assign_nodes(ComputeSpec(memory="1Ti"), offers[:2]) == ()


def test_free_gpus_come_before_bytes_and_bytes_before_few_runs() -> None:
    """In this order; then the order in which nodes are declared."""
    busy = NodeOffer("busy", gpus("H100", busy=1), bytes_there=9)
    full = NodeOffer("full", gpus("H100"), runs=3, bytes_there=5)
    idle = NodeOffer("idle", gpus("H100"))
    wanted = wanting(1, "H100:1")
    assert assign_nodes(wanted, [busy, idle, full]) == ("full",)
    assert assign_nodes(wanted, [busy, idle]) == ("idle",)
    assert assign_nodes(
        wanting(1, None), [NodeOffer("a", runs=1), NodeOffer("b"), NodeOffer("c")]
    ) == ("b",)
    assert assign_nodes(wanting(1, None), [NodeOffer("a"), NodeOffer("b")]) == ("a",)


def test_weights_go_where_there_is_room_for_them() -> None:
    """A node that has none now comes after those that have, and before one whose GPUs are busy; one that never has comes last."""
    crowded = NodeOffer("crowded", gpus("H100"), bytes_there=9, space=SpaceAvailability.LATER)
    idle = NodeOffer("idle", gpus("H100"), runs=3)
    busy = NodeOffer("busy", gpus("H100", busy=1))
    small = NodeOffer("small", gpus("H100"), space=SpaceAvailability.NEVER)
    wanted = wanting(1, "H100:1")
    assert assign_nodes(wanted, [crowded, idle]) == ("idle",)
    assert assign_nodes(wanted, [busy, crowded]) == ("crowded",)
    assert assign_nodes(wanted, [small, busy]) == ("busy",)
    assert assign_nodes(wanted, [small]) == ("small",)


def test_when_there_is_room_for_weights() -> None:
    """By what no live run has there yet, and by what would be there if none were live; what nobody told is taken for enough."""
    assert SpaceAvailability.of(5, 9, 5, 9) is SpaceAvailability.NOW
    assert SpaceAvailability.of(6, 9, 5, 9) is SpaceAvailability.LATER
    assert SpaceAvailability.of(0, 10, 5, 9) is SpaceAvailability.NEVER
    assert SpaceAvailability.of(6, 9, None, None) is SpaceAvailability.NOW


def test_a_run_waits_on_the_best_of_nodes_that_are_all_busy() -> None:
    """It gets one all the same, where it waits."""
    offers = [
        NodeOffer("a", gpus("H100", busy=1), runs=2),
        NodeOffer("b", gpus("H100", busy=1), runs=1),
    ]
    assert assign_nodes(wanting(1, "H100"), offers) == ("b",)


def test_ranks_are_numbered_in_the_declared_order() -> None:
    """Whatever made the nodes the best ones."""
    offers = [NodeOffer("a", bytes_there=1), NodeOffer("b", runs=1), NodeOffer("c", bytes_there=2)]
    assert assign_nodes(wanting(2, None), offers) == ("a", "c")


def test_what_was_placed_counts_for_the_next() -> None:
    """Two runs of one apply that want a GPU each go to two nodes."""
    offers = [NodeOffer("a", gpus("H100")), NodeOffer("b", gpus("H100"))]
    wanted = wanting(1, "H100:1")
    first = assign_nodes(wanted, offers)[0]
    left = [reserve(one, wanted) if one.node == first else one for one in offers]
    assert (first, assign_nodes(wanted, left)) == ("a", ("b",))


def test_where_no_node_was_asked_the_declared_order_holds() -> None:
    """Nobody is refused for GPUs that nobody has counted."""
    offers = [NodeOffer(name, gpus=None) for name in "abc"]
    assert assign_nodes(wanting(2, "H100:8"), offers) == ("a", "b")


@given(
    st.lists(
        st.builds(NodeOffer, st.text(), st.just(()), st.integers(0, 3), st.integers(0, 3)),
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_no_node_is_given_twice(offers: list[NodeOffer], count: int) -> None:
    """As many as are wanted, as far as there are any, each of another place in the list."""
    numbered = [
        NodeOffer(str(at), one.gpus, one.runs, one.bytes_there) for at, one in enumerate(offers)
    ]
    chosen = assign_nodes(wanting(count, None), numbered)
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
def test_what_a_job_claims_that_says_nothing(
    action: Action, accelerator: str | None, usable: int, note: str
) -> None:
    """All GPUs of its node, which the plan tells of each new run; nothing where there are none."""
    cluster, job = Address(Kind.CLUSTER, "box"), Address(Kind.JOB, "fit")
    nothing = cast("Any", None)
    facts = NodeFacts("box/0", "namespace", 0, usable_gpus=usable)
    inputs = PlanInputs(
        nothing, nothing, nodes={cluster: (facts,)}, rank_placements={job: ("box/0",)}
    )
    after = {"cluster": "box", "compute": {"accelerator": accelerator}}

    assert note_claimed_gpus(inputs, Change(job, action, "", after=after, note="why")).note == note
