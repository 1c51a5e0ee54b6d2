"""Projects, clusters and weights in plans: what is created, updated, replaced, deleted and kept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.projects.plans import (
    PlanScenario,
    at,
    change_of,
    desired,
    errors,
    intent_of,
    resource,
    source_of,
    state_after,
)
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.diagnostics import warning
from trainctl.model.reports import UnattendedCost
from trainctl.model.run import RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.plan.changes import planned_addresses
from trainctl.plan.planner import is_applyable, is_complete, make_plan
from trainctl.plan.values import (
    Observation,
    Plan,
    PlanInputs,
    PlanOptions,
    WeightsFacts,
)
from trainctl.plugin_api.machines import Offer
from trainctl.plugin_api.provider import Capabilities, Node, ResourceStatus

PROJECT, LAB, WEIGHTS, JOB = (
    at(name) for name in ("project.demo", "cluster.lab", "weights.qwen3", "job.sft")
)
DESTROY = PlanOptions(destroy=True)


def applied(status: RunStatus = RunStatus.COMPLETED) -> tuple[PlanScenario, State]:
    """The scenario, and the state after it was applied."""
    world = PlanScenario()
    return world, state_after(make_plan(world.inputs()), status=status)


def without(state: State, address: Address) -> State:
    """A state that doesn't record a resource."""
    kept = {key: record for key, record in state.resources.items() if key != address}
    return replace(state, resources=kept)


def cloud_plan(
    capabilities: Capabilities, state: State, destroy: bool = False, **settings: Any
) -> Plan:
    lab = resource("cluster.lab", {"provider": "cloud", **settings}, provider="cloud")
    options, able = PlanOptions(destroy=destroy), {"cloud": capabilities}
    return make_plan(PlanInputs(desired(lab), state, options=options, capabilities=able))


def actions(plan: Plan) -> dict[str, Action]:
    """Actions by address, in the order of the plan."""
    return {str(change.address): change.action for change in plan.changes}


def test_resources_are_created_in_the_order_of_the_graph() -> None:
    plan = make_plan(PlanScenario().inputs())
    assert list(actions(plan)) == ["project.demo", "cluster.lab", "weights.qwen3", "job.sft"]
    assert set(actions(plan).values()) == {Action.CREATE}
    assert is_applyable(plan)
    assert is_complete(plan)


def test_weights_with_another_version_upstream_are_updated() -> None:
    world, state = applied()
    world.resolved = source_of("hf://Qwen/Qwen3-0.6B@main", 7, revision="f" * 40)
    change = change_of(make_plan(world.inputs(state)), "weights.qwen3")
    assert (change.action, change.reason) == (Action.UPDATE, ActionReason.SOURCE_MOVED)
    assert change.after_unknown == {"listing": True}


def test_weights_that_are_not_resolved_keep_their_record() -> None:
    world, state = applied()
    plan = make_plan(world.inputs(state, weights={}))
    assert not plan.has_changes
    assert plan.weights[0].bytes_mirrored == world.resolved.size


def test_unknown_weights_have_no_files_and_bytes() -> None:
    """Offline and without a record they are null, not zero."""
    plan = make_plan(PlanScenario().inputs(weights={WEIGHTS: WeightsFacts(None)}))
    row = plan.weights[0]
    assert (row.files, row.bytes, row.bytes_upstream) == (None, None, None)
    assert change_of(plan, "weights.qwen3").after_unknown["pin"] is True


def test_another_provider_replaces_a_cluster() -> None:
    world, state = applied()
    grown = PlanScenario(cluster={**world.cluster, "gpus": 1})
    moved = PlanScenario(cluster={**world.cluster, "provider": "other"})
    update = change_of(make_plan(grown.inputs(state)), "cluster.lab")
    change = change_of(make_plan(moved.inputs(state)), "cluster.lab")
    assert (update.action, update.replace_paths) == (Action.UPDATE, ())
    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.CANNOT_UPDATE)
    assert change.replace_paths == (("provider",),)


def test_a_provider_declares_settings_that_force_a_replacement() -> None:
    plan = partial(
        cloud_plan, Capabilities(creates_machines=True, replacement_settings=("machine",))
    )
    state = state_after(plan(State(), machine="small", tag="a"))
    larger = change_of(plan(state, machine="large", tag="a"), "cluster.lab")
    tagged = change_of(plan(state, machine="small", tag="b"), "cluster.lab")
    assert (larger.action, larger.replace_paths) == (Action.REPLACE, (("machine",),))
    assert tagged.action is Action.UPDATE


def test_an_unreachable_resource_is_reported_once() -> None:
    """Warnings of all nodes replace that of the cluster, and that of the mirror those of weights."""
    world, state = applied()
    silent = warning("the mirror is unreachable: lab-0 doesn't answer", code="ssh-timeout")
    nodes = ("lab/lab-0", "lab/lab-1")
    unreachable = ResourceStatus.UNREACHABLE
    observed = {
        LAB: Observation(unreachable, detail="both are", unobserved=nodes),
        WEIGHTS: Observation(unreachable, detail=silent.summary),
    }
    inputs = replace(world.inputs(state, observed=observed), diagnostics=(silent,))
    for count, expected in ((2, [silent.summary]), (1, [silent.summary, "both are"])):
        plan = make_plan(replace(inputs, unreachable_nodes={*nodes[:count]}))
        assert [problem.summary for problem in plan.diagnostics] == expected


@pytest.mark.parametrize("address", ["cluster.lab", "weights.qwen3"])
def test_only_a_missing_resource_is_created_again(address: str) -> None:
    """It is drift; a resource that can't be reached or read is kept, with a warning."""
    world, state = applied()

    def plan(status: ResourceStatus) -> Plan:
        return make_plan(world.inputs(state, observed={at(address): Observation(status)}))

    missing = plan(ResourceStatus.MISSING)
    change = change_of(missing, address)
    assert (change.action, change.reason) == (Action.CREATE, ActionReason.MISSING)
    assert [str(drift.address) for drift in missing.drift] == [address]
    for status in (ResourceStatus.UNREACHABLE, ResourceStatus.FORBIDDEN):
        kept = plan(status)
        assert not kept.has_changes
        assert [problem.address for problem in kept.diagnostics] == [address]
        assert kept.drift == ()


def test_drift_has_both_sides_and_causes_no_change() -> None:
    world, state = applied()
    observation = Observation(ResourceStatus.PRESENT, {"mirror": "file:///elsewhere"})
    plan = make_plan(world.inputs(state, observed={WEIGHTS: observation}))
    (drift,) = plan.drift
    assert not plan.has_changes
    assert drift.after is not None
    assert (drift.before["mirror"], drift.after["mirror"]) == (
        "file:///mirror",
        "file:///elsewhere",
    )


def test_refresh_only_plans_no_change() -> None:
    """Drift can be applied to record it; sources of weights without a record aren't resolved."""
    world, state = applied()
    world.cluster["gpus"] = 4
    gone = {LAB: Observation(ResourceStatus.MISSING)}
    options = PlanOptions(refresh_only=True)
    recorded = without(state, JOB)
    plan = make_plan(world.inputs(recorded, options, observed=gone))
    assert actions(plan) == {str(address): Action.NOOP for address in recorded.resources}
    assert (len(plan.drift), is_applyable(plan)) == (1, True)

    recorded = without(state, WEIGHTS)
    declared = world.inputs(recorded).desired
    assert planned_addresses(declared, recorded, options) == set(recorded.resources)
    assert planned_addresses(declared, recorded, PlanOptions()) == set(declared.resources)


def test_prevent_destroy_is_recorded_and_outlives_its_block() -> None:
    plain = resource("project.demo", {"name": "demo"})
    guarded = replace(plain, lifecycle=JobLifecycle(prevent_destroy=True))
    state = state_after(make_plan(PlanInputs(desired(plain), State())))
    plan = make_plan(PlanInputs(desired(guarded), state))
    assert actions(plan) == {"project.demo": Action.UPDATE}
    state = state_after(plan, state)
    assert not make_plan(PlanInputs(desired(guarded), state)).has_changes

    removed = make_plan(PlanInputs(desired(), state))
    destroyed = make_plan(PlanInputs(desired(guarded), state, options=DESTROY))
    excluded = make_plan(PlanInputs(desired(), state, options=PlanOptions(excludes=(PROJECT,))))
    for plan in (removed, destroyed):
        assert errors(plan) == ["project.demo is protected and would be destroyed"]
        assert not is_applyable(plan)
    assert errors(excluded) == []


@pytest.mark.parametrize(
    ("options", "addresses"),
    [
        (PlanOptions(targets=(WEIGHTS,)), ["weights.qwen3"]),
        (PlanOptions(targets=(JOB,)), ["project.demo", "cluster.lab", "weights.qwen3", "job.sft"]),
        (PlanOptions(excludes=(WEIGHTS,)), ["project.demo", "cluster.lab"]),
        (PlanOptions(destroy=True, targets=(LAB,)), ["job.sft", "cluster.lab"]),
        (PlanOptions(destroy=True, excludes=(JOB,)), []),
    ],
)
def test_targets_and_excludes_follow_dependencies(
    options: PlanOptions, addresses: list[str]
) -> None:
    world, state = applied()
    plan = make_plan(world.inputs(state if options.destroy else State(), options))
    assert list(actions(plan)) == addresses
    assert not is_complete(plan)


@pytest.mark.parametrize("flag", ["targets", "excludes", "replace", "run"])
def test_an_undeclared_address_is_an_error_with_the_nearest_one(flag: str) -> None:
    chosen: dict[str, Any] = {flag: (at("job.stf"),)}
    plan = make_plan(PlanScenario().inputs(options=PlanOptions(**chosen)))
    assert [problem.detail for problem in plan.diagnostics] == ["Did you mean job.sft?"]
    assert not plan.usable


def test_a_live_run_keeps_its_node() -> None:
    """A cluster isn't replaced or shrunk under it."""
    world, state = applied(RunStatus.RUNNING)
    other = PlanScenario(cluster={**world.cluster, "provider": "other"})
    smaller = PlanScenario(cluster={**world.cluster, "nodes": 0})
    for inputs in (other.inputs(state), smaller.inputs(state, planned_nodes={LAB: ()})):
        assert errors(make_plan(inputs)) == [
            "cannot remove lab/lab-0 from cluster.lab while job.sft runs there"
        ]


def test_an_interrupted_creation_that_is_not_wanted_is_deleted() -> None:
    first = change_of(make_plan(PlanScenario().inputs()), "weights.qwen3")
    plan = make_plan(PlanInputs(desired(), State(open_intents={WEIGHTS: intent_of(first)})))
    (change,) = plan.changes
    assert (change.action, change.reason) == (Action.DELETE, ActionReason.INTERRUPTED)


def test_an_orphaned_intent_of_the_same_creation_is_resumed() -> None:
    inputs = PlanScenario().inputs()
    first = change_of(make_plan(inputs), "weights.qwen3")
    state = State(orphaned_intents={WEIGHTS: (intent_of(first, "failed-key"),)})
    change = change_of(make_plan(replace(inputs, state=state)), "weights.qwen3")
    assert (change.action, change.resumes) == (Action.CREATE, "failed-key")


def test_an_interrupted_deletion_is_resumed_unless_the_resource_is_wanted() -> None:
    world, state = applied()
    deletion = change_of(make_plan(world.inputs(state, DESTROY)), "cluster.lab")
    state = replace(state, open_intents={LAB: intent_of(deletion)})
    resumed = change_of(make_plan(world.inputs(state, DESTROY)), "cluster.lab")
    wanted = change_of(make_plan(world.inputs(state)), "cluster.lab")
    assert (resumed.action, resumed.resumes) == (Action.DELETE, "interrupted-key")
    assert (wanted.action, wanted.reason) == (Action.UPDATE, ActionReason.INTERRUPTED)
    assert wanted.resumes is None


def test_unused_weights_are_deleted_after_the_new_run_of_their_job() -> None:
    world, state = applied()
    world.job["weights"] = []
    project, cluster, _, job = world.resources()
    job = replace(job, depends_on=(PROJECT, LAB))
    plan = make_plan(world.inputs(state, desired=desired(project, cluster, job)))
    changed = [address for address, action in actions(plan).items() if action is not Action.NOOP]
    assert changed == ["job.sft", "weights.qwen3"]


def test_recorded_dependencies_in_a_cycle_are_destroyed() -> None:
    first = resource("weights.a", {"source": "file:./a"}, "weights.b")
    second = resource("weights.b", {"source": "file:./b"}, "weights.a")
    state = state_after(make_plan(PlanInputs(desired(first, second), State())))
    plan = make_plan(PlanInputs(desired(), state))
    assert sorted(actions(plan)) == ["weights.a", "weights.b"]


def test_sources_without_a_pin_and_useless_patterns_are_warnings() -> None:
    """If the lock file is read-only, applying pins nothing."""
    world = PlanScenario()
    facts = WeightsFacts(world.resolved, unmatched_patterns={"*.gguf": None, "*.jsn": "*.json"})
    inputs = world.inputs(weights={WEIGHTS: facts})
    plan = make_plan(inputs)
    assert [problem.summary for problem in plan.diagnostics] == [
        "the pattern '*.gguf' matches no file",
        "the pattern '*.jsn' matches no file",
        "not pinned in trainctl.lock yet: weights.qwen3",
    ]
    assert plan.diagnostics[1].detail.startswith("Did you mean '*.json'?")
    assert "To pin the revision, apply" in plan.diagnostics[2].detail
    assert plan.usable
    detail = make_plan(replace(inputs, lock_readonly=True)).diagnostics[2].detail
    assert "the revision is not recorded" in detail
    assert "To pin the revision, apply" not in detail


def test_what_machines_cost_if_no_one_returns() -> None:
    """By the first of their ends, from the boot on for new ones; without any for one of them, until a user returns."""
    guest = Node("lab", "a", shutdown=("off",), idle_timeout=1800.0, boot_timeout=900.0)
    forever, limited = Node("lab", "b"), Node("lab", "c", max_lifetime=7200.0)
    world = PlanScenario(cluster={"provider": "ssh", "price_per_hour": 2.0})
    able: dict[str, Any] = {"capabilities": {"ssh": Capabilities(costs_money=True)}}

    def row(state: State, *nodes: Node, prices: dict[str, float] | None = None) -> UnattendedCost:
        inputs = world.inputs(state, planned_nodes={LAB: nodes}, prices=prices or {}, **able)
        return make_plan(inputs).unattended[0]

    created = make_plan(world.inputs(planned_nodes={LAB: (guest,)}, **able))
    state = state_after(created)
    assert make_plan(world.inputs(planned_nodes={LAB: (guest,)})).unattended == ()
    untrusted = world.inputs(
        options=PlanOptions(untrusted=True), planned_nodes={LAB: (guest,)}, **able
    )
    assert make_plan(untrusted).unattended == (), "it runs no module that says more"
    assert created.unattended == (UnattendedCost(LAB, 1, "guest", 2700.0, 2.0, 1.5),)
    assert row(state, guest) == UnattendedCost(LAB, 1, "guest", 1800.0, 2.0, 1.0)
    both = row(state, guest, limited, prices={"lab/c": 0.5})
    assert both == UnattendedCost(LAB, 2, "provider", 7200.0, 2.5, 2.0)
    either = replace(guest, max_lifetime=600.0)
    assert row(state, either).end == "provider"
    assert row(state, either).seconds == 600.0
    assert row(state, guest, forever) == UnattendedCost(LAB, 2, "", None, 4.0, None)
    world.job["runtime"]["checkpointing_config"] = {"enabled": True}
    assert row(state, guest).seconds == 3600.0, "twice while checkpoints are not uploaded"
    world.job["runtime"].pop("checkpointing_config")
    world.cluster.pop("price_per_hour")
    assert row(state, guest) == UnattendedCost(LAB, 1, "guest", 2700.0, None, None)
    assert make_plan(world.inputs(state, options=PlanOptions(destroy=True))).unattended == ()


def test_machines_that_cost_money_are_created_after_mirroring() -> None:
    """The cluster waits for the weights of its jobs without depending on them."""
    offer = Offer("big", 8, "H100", "a", 9.0, "table", "2026-01-01", "spot")
    inputs = replace(PlanScenario().inputs(), offers={LAB: (offer,)})
    provider = inputs.desired.resources[LAB].provider
    for costs, order in ((True, [WEIGHTS, LAB]), (False, [LAB, WEIGHTS])):
        plan = make_plan(replace(inputs, capabilities={provider: Capabilities(costs_money=costs)}))
        change = change_of(plan, "cluster.lab")
        assert change.waits_for == ((WEIGHTS,) if costs else ())
        assert WEIGHTS not in change.depends_on
        assert [item.address for item in plan.changes if item.address in order] == order
        assert plan.offers == {LAB: (offer,)}
