"""What ranks need on their nodes, what it costs, and what is impossible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import (
    PlanScenario,
    at,
    desired,
    resource,
    source_of,
    state_after,
)
from trainctl.model.address import Address
from trainctl.model.delivery import ServingCapability
from trainctl.plan.planner import make_plan
from trainctl.plan.transfers.routes import client_transfer_warnings
from trainctl.plan.values import NodeFacts, Plan, TierFacts, WeightsFacts


def errors(plan: Plan) -> list[str]:
    """The summaries of what forbids applying it."""
    return [one.summary for one in plan.diagnostics if one.severity.value == "error"]


def test_bytes_by_tier_sum_to_the_listing() -> None:
    """Each byte is found in one tier; the forecast adds both hops at their recorded rates."""
    world = PlanScenario(mirrored=11_422_654)

    line = make_plan(world.inputs()).deliveries[0]

    assert line.tiers is not None
    assert line.tiers.total == world.resolved.size
    assert (line.node, line.path, line.mount) == ("lab/lab-0", "mirror-to-node", "namespace")
    upstream = world.resolved.size - 11_422_654
    assert line.forecast_seconds == round(upstream / 5e7 + world.resolved.size / 1e9, 1)
    assert line.last_hop_seconds == round(world.resolved.size / 1e9, 1)


def test_what_the_node_has_is_not_moved() -> None:
    """A node with every byte has path none and takes no time."""
    size = PlanScenario().resolved.size

    line = make_plan(PlanScenario(mirrored=size, on_node=size).inputs()).deliveries[0]

    assert (line.path, line.forecast_seconds) == ("none", 0.0)


def test_nothing_starts_nothing_is_delivered() -> None:
    """A job that doesn't run again has no delivery."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    assert make_plan(world.inputs(state)).deliveries == ()


def test_a_node_that_could_not_be_asked_counts_from_the_mirror() -> None:
    """Without the node's word tiers come from the mirror, and mount and seconds stay unknown."""
    world = PlanScenario(mirrored=100)

    line = make_plan(world.inputs(nodes={})).deliveries[0]

    assert line.tiers == TierFacts(mirror=100, upstream=world.resolved.size - 100)
    assert (line.node, line.mount, line.forecast_seconds) == ("lab/lab-0", "", None)


def test_unknown_weights_have_unknown_tiers() -> None:
    """Where nothing is known of the weights, tiers and forecast are null."""
    nodes = {at("cluster.lab"): (NodeFacts("lab/lab-0", "namespace", 10**9),)}
    weights = {at("weights.qwen3"): WeightsFacts(None)}

    line = make_plan(PlanScenario().inputs(weights=weights, nodes=nodes)).deliveries[0]

    assert (line.tiers, line.forecast_seconds, line.path) == (None, None, "mirror-to-node")


def test_an_absolute_mount_needs_a_private_one() -> None:
    """Where a node can only link, an absolute mount is an error with its fixes; a relative one is not."""
    world = PlanScenario(mount="link")

    plan = make_plan(world.inputs())
    world.job["weights"][0]["mount_location"] = "weights/qwen3"

    assert errors(plan) == ["/app/models/qwen3 cannot be created on lab/lab-0"]
    assert "weights/qwen3" in plan.diagnostics[-1].detail
    assert errors(make_plan(world.inputs())) == []


def test_disk_space_is_checked_before_anything_moves() -> None:
    """Weights that don't fit on a node's disk are an error that says how much is missing."""
    world = PlanScenario()
    tiers = {at("weights.qwen3"): TierFacts(upstream=world.resolved.size)}
    small = {at("cluster.lab"): (NodeFacts("lab/lab-0", "namespace", 10**9, tiers),)}

    plan = make_plan(world.inputs(nodes=small))

    assert errors(plan) == ["lab/lab-0 has 1.0 GB free but needs 1.5 GB for weights"]


@pytest.mark.parametrize(("missing", "fits"), [(0, True), (1, False)])
def test_weights_that_fill_a_node_exactly_fit(missing: int, fits: bool) -> None:
    """The last byte of free space counts."""
    world = PlanScenario()
    size = world.resolved.size
    tiers = {at("weights.qwen3"): TierFacts(upstream=size)}
    node = NodeFacts("lab/lab-0", "namespace", 10**12, tiers, weights_space=size - missing)

    plan = make_plan(world.inputs(nodes={at("cluster.lab"): (node,)}))

    assert (errors(plan) == []) is fits


def test_a_limit_counts_what_live_runs_dont_have_there_already() -> None:
    """Of a limited cache the error says how much is free of how much; what live runs have there takes no room again."""
    world = PlanScenario()
    weights = at("weights.qwen3")
    tiers = {weights: TierFacts(upstream=world.resolved.size)}
    seen = NodeFacts("lab/lab-0", "namespace", 10**12, tiers, weights_space=10**9, limit=5 * 10**9)
    lab = at("cluster.lab")

    full = make_plan(world.inputs(nodes={lab: (replace(seen, claims={weights: 1_500_000_000}),)}))
    shared = make_plan(world.inputs(nodes={lab: (replace(seen, claims={weights: 500_000_000}),)}))

    assert errors(full) == ["lab/lab-0 has 1.0 GB of 5.0 GB free but needs 1.5 GB for weights"]
    assert "raise cache.node.size" in full.diagnostics[-1].detail
    assert errors(shared) == []


def test_weights_that_fit_once_others_have_ended_wait() -> None:
    """What live runs have there now is no reason to refuse a job; what they will never leave is. A run that the job itself stops says nothing."""
    world = PlanScenario()
    weights, lab = at("weights.qwen3"), at("cluster.lab")
    tiers = {weights: TierFacts(upstream=world.resolved.size)}
    seen = NodeFacts(
        "lab/lab-0",
        "namespace",
        10**12,
        tiers,
        weights_space=10**9,
        limit=2 * 10**9,
        weights_space_max=2 * 10**9,
    )
    full = replace(seen, claims={weights: world.resolved.size})

    waits = make_plan(world.inputs(nodes={lab: (full,)}))
    never = make_plan(world.inputs(nodes={lab: (replace(full, weights_space_max=10**9),)}))

    assert [(one.code, one.address) for one in waits.diagnostics] == [
        ("waiting-for-disk-space", "job.sft")
    ]
    assert waits.diagnostics[0].summary == (
        "lab/lab-0 has 1.0 GB of 2.0 GB free in addition to live runs, but needs 1.5 GB for weights: the job waits"
    )
    assert errors(never) == ["lab/lab-0 has 1.0 GB of 2.0 GB free but needs 1.5 GB for weights"]


@pytest.mark.parametrize("missing", [0, 1])
def test_jobs_that_fit_only_one_after_the_other_are_named(missing: int) -> None:
    """The node has space for the weights of each job, but not for both: a warning, as one job will wait."""
    world = PlanScenario()
    second = source_of("hf://Qwen/Other@main", 2 * 10**9)
    weights = resource("weights.other", {"source": second.source, "mount_location": "/other"})
    needs = [{**world.job["weights"][0], "address": "weights.other", "source": second.source}]
    job = resource("job.other", {**world.job, "weights": needs}, "cluster.lab", "weights.other")
    sizes = {at("weights.qwen3"): world.resolved.size, weights.address: second.size}
    tiers = {address: TierFacts(upstream=size) for address, size in sizes.items()}
    node = NodeFacts("lab/lab-0", "namespace", sum(sizes.values()) - missing, tiers)
    inputs = replace(
        world.inputs(nodes={at("cluster.lab"): (node,)}),
        desired=desired(*world.resources(), weights, job),
        code={at("job.sft"): world.code, job.address: world.code},
        weights={
            at("weights.qwen3"): WeightsFacts(world.resolved, locked=True),
            weights.address: WeightsFacts(second, locked=True),
        },
    )

    found = [one for one in make_plan(inputs).diagnostics if one.code == "insufficient-disk-space"]

    assert [(str(one.severity), one.address) for one in found] == [("warning", "job.other")][
        : bool(missing)
    ]
    assert all("job.other, job.sft" in one.detail for one in found)


def test_ranks_need_nodes() -> None:
    """More nodes than the cluster has are an error; the ranks without one have a null node."""
    world = PlanScenario()
    world.job["compute"] = {"node_count": 2}

    plan = make_plan(world.inputs())

    assert errors(plan) == ["job.sft needs 2 nodes, but cluster.lab has 1 node"]
    assert [line.node for line in plan.deliveries] == ["lab/lab-0", None]


def test_cost_counts_a_node_once() -> None:
    """The price of an hour is that of the nodes that new runs use, and nothing when none starts."""
    world = PlanScenario(cluster={"provider": "local", "nodes": 1, "price_per_hour": 2.5})

    plan = make_plan(world.inputs())

    assert plan.hourly_cost == 2.5
    assert make_plan(world.inputs(state_after(plan))).hourly_cost == 0.0


def test_a_node_with_a_price_of_its_own_costs_that() -> None:
    """Beside others that cost what their cluster says; a rank that has no node yet counts as the cheapest that is left."""
    world = PlanScenario(cluster={"provider": "ssh", "price_per_hour": 2.0})
    names = {at("cluster.lab"): ("lab-0", "lab-1", "lab-2")}
    prices = {"lab/lab-0": 8.0, "lab/lab-2": 0.5}

    def cost(nodes: int) -> float:
        world.job["compute"] = {"node_count": nodes}
        return make_plan(world.inputs(node_names=names, prices=prices)).hourly_cost

    assert [cost(1), cost(2), cost(3)] == [8.0, 8.5, 10.5]


def test_a_job_that_needs_a_node_that_is_away_will_wait() -> None:
    """The nodes that could be asked are taken first, and who needs more is told which one is missing."""
    world = PlanScenario()
    names = {at("cluster.lab"): ("lab-9", "lab-0")}
    one = make_plan(world.inputs(node_names=names))
    world.job["compute"] = {"node_count": 2}
    two = make_plan(world.inputs(node_names=names))

    assert [line.node for line in one.deliveries] == ["lab/lab-0"]
    assert [line.node for line in two.deliveries] == ["lab/lab-0", None]
    assert "job.sft will wait: it needs 2 nodes, and lab/lab-9 can't be reached" in [
        found.summary for found in two.diagnostics
    ]
    assert errors(two) == []


def _far(
    size: int, rates: dict[str, float], max_rate: int | None = None
) -> dict[Address, tuple[NodeFacts, ...]]:
    """The cluster's nodes, which don't see the mirror's directory and have nothing."""
    weights = at("weights.qwen3")
    return {
        at("cluster.lab"): tuple(
            NodeFacts(
                f"lab/lab-{n}",
                "namespace",
                10**12,
                {weights: TierFacts(mirror=size)},
                rates,
                sees_mirror=False,
                max_rate=max_rate,
            )
            for n in range(2)
        )
    }


def test_a_node_that_sees_no_mirror_gets_them_through_the_operator() -> None:
    """The path says so with its reason, the rate is that of this hop, and more than a gigabyte is a warning."""
    world = PlanScenario()

    plan = make_plan(world.inputs(nodes=_far(2 * 10**9, {"client": 1e8, "mirror": 1e9})))

    line = plan.deliveries[0]
    assert (line.path, line.forecast_seconds) == ("through-client", 20.0)
    assert line.why == "lab/lab-0 has no access to the mirror's directory"
    assert [one.code for one in plan.diagnostics if one.code == "through-client"]


def test_little_may_go_through_the_operator() -> None:
    """Up to a gigabyte nobody is warned."""
    world = PlanScenario()

    plan = make_plan(world.inputs(nodes=_far(10**9, {})))

    assert [one.code for one in plan.diagnostics if one.code == "through-client"] == []


def test_several_nodes_that_see_no_mirror_are_peers() -> None:
    """One copy of what they lack crosses the operator's machine, however many they are."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = 2

    names = {at("cluster.lab"): ("lab-0", "lab-1")}
    nodes = _far(2 * 10**9, {"peers": 2e8})

    plan = make_plan(world.inputs(nodes=nodes, node_names=names))

    assert [(line.path, line.forecast_seconds) for line in plan.deliveries] == [("peers", 10.0)] * 2
    (crossing,) = [one for one in plan.diagnostics if one.code == "through-client"]
    assert crossing.summary.startswith("2.0 GB")


@pytest.mark.parametrize(
    ("networks", "paths"),
    [
        (("one", "another"), ["through-client"] * 2),
        (("one", "one"), ["peers"] * 2),
        (("one", "another", ""), ["through-client"] * 3),
        (("one", "", ""), ["through-client", "peers", "peers"]),
    ],
)
def test_who_can_hand_out_nothing_is_no_peer(networks: tuple[str, ...], paths: list[str]) -> None:
    """Ranks whose host is reached by loopback alone, but for those that share it, come through this machine: the plan says why."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = len(networks)
    (first, *_) = _far(2 * 10**9, {})[at("cluster.lab")]
    found = [
        replace(
            first,
            id=f"lab/lab-{n}",
            serving=ServingCapability(why="it is loopback" if name else "", loopback=name),
        )
        for n, name in enumerate(networks)
    ]
    names = {at("cluster.lab"): tuple(f"lab-{n}" for n in range(len(networks)))}

    plan = make_plan(world.inputs(nodes={at("cluster.lab"): tuple(found)}, node_names=names))

    assert [line.path for line in plan.deliveries] == paths
    reasons = {line.why for line, name in zip(plan.deliveries, networks, strict=True) if name}
    assert all(("loopback" in why) is (paths[0] != "peers") for why in reasons)


def _on_a_host(count: int, **of_others: str) -> dict[Address, tuple[NodeFacts, ...]]:
    """Nodes that have nothing, the first of which keeps the mirror."""
    tiers = {at("weights.qwen3"): TierFacts(mirror=2 * 10**9)}
    first = NodeFacts("lab/lab-0", "namespace", 10**12, tiers, mirror_on="lab/lab-0")
    others = [
        replace(first, id=f"lab/lab-{n}", sees_mirror=False, **of_others)  # type: ignore[arg-type]
        for n in range(1, count)
    ]
    return {at("cluster.lab"): (first, *others)}


@pytest.mark.parametrize(
    ("ranks", "paths"),
    [
        (1, ["mirror-to-node"]),
        (2, ["mirror-to-node"] * 2),
        (3, ["mirror-to-node", "peers", "peers"]),
    ],
)
def test_a_mirror_on_a_host_sends_nothing_through_this_machine(
    ranks: int, paths: list[str]
) -> None:
    """That host takes its own, one other gets it from there, several pass it on; nobody is warned of this machine."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = ranks
    names = {at("cluster.lab"): tuple(f"lab-{n}" for n in range(ranks))}

    plan = make_plan(world.inputs(nodes=_on_a_host(ranks), node_names=names))

    assert [line.path for line in plan.deliveries] == paths
    assert plan.deliveries[0].why == "the mirror is on lab/lab-0"
    assert all("lab/lab-0" in line.why for line in plan.deliveries)
    assert [one.code for one in plan.diagnostics if one.code == "through-client"] == []


def test_a_host_with_a_global_address_serves_nobody() -> None:
    """Jobs on other nodes are refused with the reason; one on the host itself is not."""
    world = PlanScenario()
    alone = make_plan(world.inputs(nodes=_on_a_host(1)))
    world.job["compute"]["node_count"] = 2
    names = {at("cluster.lab"): ("lab-0", "lab-1")}

    plan = make_plan(
        world.inputs(nodes=_on_a_host(2, unserved_reason="192.0.2.1 is global"), node_names=names)
    )

    assert errors(alone) == []
    assert errors(plan) == [
        "lab/lab-1 cannot download its weights from lab/lab-0: 192.0.2.1 is global"
    ]


def test_what_a_mirror_on_a_host_gets_from_here_is_counted() -> None:
    """More than a gigabyte that only this machine can read is a warning that names the weights."""
    world = PlanScenario()
    weights = at("weights.qwen3")
    facts = WeightsFacts(world.resolved, 0, relayed_bytes=1_503_300_328, locked=True)

    plan = make_plan(world.inputs(weights={weights: facts}, nodes=_on_a_host(1)))

    assert plan.weights[0].bytes_through_client == 1_503_300_328
    (told,) = [one for one in plan.diagnostics if one.code == "through-client"]
    assert (
        told.summary == "1.5 GB of weights.qwen3 are transferred via this machine into the mirror"
    )


def test_what_crosses_this_machine_once_is_counted_once() -> None:
    """To a node with the first job that has it there."""
    plan = make_plan(PlanScenario().inputs(nodes=_far(2 * 10**9, {})))

    (line,) = plan.deliveries
    again = replace(line, job=at("job.again"), weights=at("weights.again"))
    other = replace(again, node="lab/lab-1", job=at("job.other"))
    changed = replace(again, source="another version")
    assert [one.address for one in client_transfer_warnings([line, again, other])] == [
        "job.other",
        "job.sft",
    ]
    assert [one.address for one in client_transfer_warnings([line, changed])] == [
        "job.again",
        "job.sft",
    ]


def test_weights_that_the_mirror_was_not_asked_about_are_as_recorded() -> None:
    """Without a look at the mirror nothing that is recorded is fetched again, and nothing else is taken to be there."""
    world = PlanScenario()
    unknown = {at("weights.qwen3"): WeightsFacts(world.resolved, None, locked=True)}
    first = make_plan(world.inputs(weights=unknown))
    second = make_plan(world.inputs(state_after(first), weights=unknown))

    assert first.weights[0].bytes_mirrored == 0
    assert second.weights[0].bytes_mirrored == world.resolved.size


@pytest.mark.parametrize(
    ("rates", "limit", "seconds"),
    [({"client": 1e8}, 10**8, 20.0), ({"client": 1e8}, 10**7, 200.0), ({"client": 1e8}, 10**9, 20.0), ({}, 10**7, 200.0)],
)  # fmt: skip
def test_a_limit_is_in_the_forecast(rates: dict[str, float], limit: int, seconds: float) -> None:
    """What comes from the mirror takes as long as the limit has it take, where that is longer or nothing was measured; the plan names it."""
    plan = make_plan(PlanScenario().inputs(nodes=_far(2 * 10**9, rates, limit)))

    line = plan.deliveries[0]
    assert line.forecast_seconds == seconds
    assert "from the mirror (max_rate)" in line.why


def test_peers_share_the_limit_of_the_mirror() -> None:
    """Two nodes that fetch one copy together take it at twice the rate that each of them may."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = 2
    names = {at("cluster.lab"): ("lab-0", "lab-1")}

    plan = make_plan(world.inputs(nodes=_far(2 * 10**9, {}, 10**8), node_names=names))

    assert [line.forecast_seconds for line in plan.deliveries] == [10.0, 10.0]
