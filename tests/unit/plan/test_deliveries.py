"""What ranks need on their nodes, what it costs, and what is impossible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.projects import plans
from tests.support.projects.plans import (
    PlanScenario,
    at,
    desired,
    errors,
    resource,
    source_of,
    state_after,
    with_facts,
)
from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.plan.deliveries import client_transfer_warnings
from trainctl.plan.planner import make_plan
from trainctl.plan.values import (
    DeliveryRow,
    MirrorProximity,
    NodeFacts,
    Plan,
    TierFacts,
    WeightsFacts,
)
from trainctl.plugin_api.provider import Node

LAB, WEIGHTS = at("cluster.lab"), at("weights.qwen3")
SIZE = PlanScenario().resolved.size
GB = 10**9
NODE = replace(plans.NODE, tiers={WEIGHTS: TierFacts(upstream=SIZE)})
UNSEEN = MirrorProximity(sees=False)
REMOTE = replace(NODE, tiers={WEIGHTS: TierFacts(mirror=2 * GB)}, mirror=UNSEEN)
"""A node that can't access the directory of the mirror."""
MIRROR = replace(REMOTE, mirror=MirrorProximity(host="lab/lab-0"))
"""The node that has the mirror."""


def limited(rate: int | None) -> NodeCacheRequest:
    """Settings of a node's cache with a download limit."""
    return {"root": "/data"} if rate is None else {"root": "/data", "max_rate": rate}


def transfer_warnings(plan: Plan) -> list[str]:
    """The summaries of the warnings of transfers via the client."""
    return [problem.summary for problem in plan.diagnostics if problem.code == "through-client"]


def plan_on(*nodes: NodeFacts, **more: Any) -> Plan:
    """The plan for a job with a rank on each of these nodes."""
    world = PlanScenario()
    world.job["compute"] = {"node_count": len(nodes)}
    numbered = tuple(replace(node, id=f"lab/lab-{n}") for n, node in enumerate(nodes))
    planned = {LAB: tuple(Node("lab", f"lab-{n}") for n in range(len(nodes)))}
    return make_plan(world.inputs(nodes={LAB: numbered}, planned_nodes=planned, **more))


def routes(plan: Plan) -> list[str]:
    return [row.path for row in plan.deliveries]


def delivery(**more: Any) -> DeliveryRow:
    world = more.pop("world", PlanScenario())
    (row,) = make_plan(world.inputs(**more)).deliveries
    return row


def test_bytes_by_tier_sum_to_the_listing() -> None:
    """The forecast adds both hops at their recorded rates."""
    row = delivery(world=PlanScenario(mirrored=11_422_654))
    assert row.tiers is not None
    assert row.tiers.total == SIZE
    assert (row.node, row.path, row.mount) == ("lab/lab-0", "mirror-to-node", "namespace")
    assert row.forecast_seconds == round((SIZE - 11_422_654) / 5e7 + SIZE / 1e9, 1)
    assert row.last_hop_seconds == round(SIZE / 1e9, 1)


def test_tiers_of_a_complete_an_unreachable_and_an_unknown_node() -> None:
    row = delivery(world=PlanScenario(mirrored=SIZE, on_node=SIZE))
    assert (row.path, row.forecast_seconds) == ("none", 0.0)
    row = delivery(world=PlanScenario(mirrored=100), nodes={})
    assert row.tiers == TierFacts(mirror=100, upstream=SIZE - 100)
    assert (row.node, row.mount, row.forecast_seconds) == ("lab/lab-0", "", None)
    nodes = {LAB: (replace(NODE, tiers={}),)}
    row = delivery(weights={WEIGHTS: WeightsFacts(None)}, nodes=nodes)
    assert (row.tiers, row.forecast_seconds, row.path) == (None, None, "mirror-to-node")


def test_an_absolute_mount_location_needs_a_namespace() -> None:
    world = PlanScenario(mount="link")
    plan = make_plan(world.inputs())
    assert errors(plan) == ["/app/models/qwen3 cannot be created on lab/lab-0"]
    assert "weights/qwen3" in plan.diagnostics[-1].detail
    world.job["weights"][0]["mount_location"] = "weights/qwen3"
    assert errors(make_plan(world.inputs())) == []


@pytest.mark.parametrize("case", cases("plan/disk_space"))
def test_disk_space_is_checked_before_anything_moves(case: dict[str, Any]) -> None:
    """Bytes that live runs have there count once; if there is space after they end, the job waits."""
    facts, code, summary = dict(case["facts"]), case.get("code", "error"), case.get("summary")
    if "claims" in facts:
        facts["claims"] = {WEIGHTS: facts["claims"]}
    space = {key: facts.pop(key) for key in ("room", "most") if key in facts}
    facts["cached"] = {"trees": [], "blobs": [], **space}
    if "limit" in facts:
        facts["cache"] = {"root": "/data", "cache": {"dir": None, "size": facts.pop("limit")}}
    plan = plan_on(with_facts(NODE, **facts))
    assert [item.summary for item in plan.diagnostics] == [f"lab/lab-0 {summary}"] * bool(summary)
    assert plan.usable is (summary is None or code != "error")
    for problem in plan.diagnostics:
        assert code in ("error", problem.code)
        if "cache" in facts and code == "error":
            assert "raise cache.node.size" in problem.detail


@pytest.mark.parametrize("missing", [0, 1])
def test_jobs_that_fit_only_one_after_the_other_are_a_warning(missing: int) -> None:
    world = PlanScenario()
    second = source_of("hf://Qwen/Other@main", 2 * GB)
    weights = resource("weights.other", {"source": second.source, "mount_location": "/other"})
    needs = [{**world.job["weights"][0], "address": "weights.other", "source": second.source}]
    job = resource("job.other", {**world.job, "weights": needs}, "cluster.lab", "weights.other")
    tiers = {WEIGHTS: TierFacts(upstream=SIZE), weights.address: TierFacts(upstream=second.size)}
    node = with_facts(NODE, disk_free=SIZE + second.size - missing, tiers=tiers)
    inputs = world.inputs(
        nodes={LAB: (node,)},
        desired=desired(*world.resources(), weights, job),
        code={at("job.sft"): world.code, job.address: world.code},
        weights={
            WEIGHTS: WeightsFacts(world.resolved, locked=True),
            weights.address: WeightsFacts(second, locked=True),
        },
    )

    diagnostics = make_plan(inputs).diagnostics
    result = [problem for problem in diagnostics if problem.code == "insufficient-disk-space"]

    assert [(str(item.severity), item.address) for item in result] == [
        ("warning", "job.other")
    ] * missing
    assert all("job.other, job.sft" in item.detail for item in result)


def test_a_job_needs_nodes() -> None:
    """Ranks without a node have none in the plan, and an unreachable node is taken last."""
    world = PlanScenario()
    both = {LAB: (Node("lab", "lab-9"), Node("lab", "lab-0"))}
    reachable = make_plan(world.inputs(planned_nodes=both))
    world.job["compute"] = {"node_count": 2}
    waiting, impossible = make_plan(world.inputs(planned_nodes=both)), make_plan(world.inputs())

    assert [row.node for row in reachable.deliveries] == ["lab/lab-0"]
    for plan in (waiting, impossible):
        assert [row.node for row in plan.deliveries] == ["lab/lab-0", None]
    summaries = [problem.summary for problem in waiting.diagnostics]
    assert "job.sft will wait: it needs 2 nodes, and lab/lab-9 can't be reached" in summaries
    assert errors(waiting) == []
    assert errors(impossible) == ["job.sft needs 2 nodes, but cluster.lab has 1 node"]


def test_the_price_of_an_hour_is_that_of_the_nodes_of_new_runs() -> None:
    world = PlanScenario(cluster={"provider": "local", "nodes": 1, "price_per_hour": 2.5})
    plan = make_plan(world.inputs())
    again = make_plan(world.inputs(state_after(plan)))
    assert (plan.hourly_cost, again.hourly_cost) == (2.5, 0.0)
    assert again.deliveries == ()


def test_a_rank_without_a_node_costs_as_the_cheapest_one_left() -> None:
    """Nodes may have a price of their own, next to that of their cluster."""
    world = PlanScenario(cluster={"provider": "ssh", "price_per_hour": 2.0})
    three = {LAB: tuple(Node("lab", f"lab-{n}") for n in range(3))}
    prices = {"lab/lab-0": 8.0, "lab/lab-2": 0.5}

    def cost(nodes: int) -> float:
        world.job["compute"] = {"node_count": nodes}
        return make_plan(world.inputs(planned_nodes=three, prices=prices)).hourly_cost

    assert [cost(1), cost(2), cost(3)] == [8.0, 8.5, 10.5]


def test_a_node_without_the_mirror_downloads_through_the_client() -> None:
    """At the rate of this hop; more than a gigabyte is a warning."""
    plan = plan_on(replace(REMOTE, rates={"client": 1e8, "mirror": 1e9}))
    (row,) = plan.deliveries
    assert (row.path, row.forecast_seconds) == ("through-client", 20.0)
    assert row.why == "lab/lab-0 has no access to the mirror's directory"
    assert len(transfer_warnings(plan)) == 1
    little = replace(REMOTE, tiers={WEIGHTS: TierFacts(mirror=GB)})
    assert transfer_warnings(plan_on(little)) == []


def test_several_nodes_without_the_mirror_are_peers() -> None:
    """One copy crosses the client."""
    plan = plan_on(*[replace(REMOTE, rates={"peers": 2e8})] * 2)
    assert [(row.path, row.forecast_seconds) for row in plan.deliveries] == [("peers", 10.0)] * 2
    (crossing,) = transfer_warnings(plan)
    assert crossing.startswith("2.0 GB")


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (("one", "another"), ["through-client"] * 2),
        (("one", "one"), ["peers"] * 2),
        (("one", "another", ""), ["through-client"] * 3),
        (("one", "", ""), ["through-client", "peers", "peers"]),
    ],
)
def test_a_node_that_cannot_serve_is_no_peer(
    networks: Sequence[str], expected: Sequence[str]
) -> None:
    """A node that is reached by loopback serves only nodes on the same host."""
    nodes = [
        with_facts(
            REMOTE, serving={"tls": False, "why": "it is loopback" * bool(name), "loopback": name}
        )
        for name in networks
    ]
    plan = plan_on(*nodes)
    assert routes(plan) == expected
    reasons = {row.why for row, name in zip(plan.deliveries, networks, strict=True) if name}
    assert all(("loopback" in why) is (expected[0] != "peers") for why in reasons)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, ["mirror-to-node"]),
        (2, ["mirror-to-node"] * 2),
        (3, ["mirror-to-node", "peers", "peers"]),
    ],
)
def test_a_mirror_on_a_node_sends_nothing_through_the_client(
    ranks: int, expected: list[str]
) -> None:
    plan = plan_on(
        MIRROR, *[replace(MIRROR, mirror=replace(MIRROR.mirror, sees=False))] * (ranks - 1)
    )
    assert routes(plan) == expected
    assert plan.deliveries[0].why == "the mirror is on lab/lab-0"
    assert all("lab/lab-0" in row.why for row in plan.deliveries)
    assert transfer_warnings(plan) == []


def test_a_mirror_on_a_node_with_a_global_address_serves_only_that_node() -> None:
    place = MirrorProximity(False, "lab/lab-0", "192.0.2.1 is global")
    refused = replace(MIRROR, mirror=place)
    assert errors(plan_on(MIRROR)) == []
    assert errors(plan_on(MIRROR, refused)) == [
        "lab/lab-1 cannot download its weights from lab/lab-0: 192.0.2.1 is global"
    ]


def test_bytes_that_only_the_client_can_read_are_a_warning() -> None:
    facts = WeightsFacts(PlanScenario().resolved, 0, relayed_bytes=SIZE, locked=True)
    plan = plan_on(MIRROR, weights={WEIGHTS: facts})
    assert plan.weights[0].bytes_through_client == SIZE
    assert transfer_warnings(plan) == [
        "1.5 GB of weights.qwen3 are transferred via this machine into the mirror"
    ]


def test_bytes_that_cross_the_client_for_two_jobs_count_once() -> None:
    (row,) = plan_on(REMOTE).deliveries
    again = replace(row, job=at("job.again"), weights=at("weights.again"))
    other = replace(again, node="lab/lab-1", job=at("job.other"))
    changed = replace(again, source="another version")
    warnings = client_transfer_warnings([row, again, other])
    assert [warning.address for warning in warnings] == ["job.other", "job.sft"]
    warnings = client_transfer_warnings([row, changed])
    assert [warning.address for warning in warnings] == ["job.again", "job.sft"]


def test_weights_that_could_not_be_looked_up_in_the_mirror_are_as_recorded() -> None:
    world = PlanScenario()
    unknown = {WEIGHTS: WeightsFacts(world.resolved, None, locked=True)}
    first = make_plan(world.inputs(weights=unknown))
    second = make_plan(world.inputs(state_after(first), weights=unknown))
    assert [plan.weights[0].bytes_mirrored for plan in (first, second)] == [0, SIZE]


@pytest.mark.parametrize(
    ("rates", "limit", "seconds"),
    [
        ({"client": 1e8}, 10**8, 20.0),
        ({"client": 1e8}, 10**7, 200.0),
        ({"client": 1e8}, 10**9, 20.0),
        ({}, 10**7, 200.0),
    ],
)
def test_a_limit_is_in_the_forecast(rates: dict[str, float], limit: int, seconds: float) -> None:
    (row,) = plan_on(replace(REMOTE, rates=rates, cache=limited(limit))).deliveries
    assert row.forecast_seconds == seconds
    assert "from the mirror (max_rate)" in row.why


def test_peers_share_the_limit_of_the_mirror() -> None:
    """Two nodes that download one copy together have twice the rate of one."""
    plan = plan_on(*[replace(REMOTE, cache=limited(10**8))] * 2)
    assert [row.forecast_seconds for row in plan.deliveries] == [10.0, 10.0]
