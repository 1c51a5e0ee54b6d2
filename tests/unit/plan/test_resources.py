"""Projects, clusters, weights, what goes, and what must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import (
    PlanScenario,
    at,
    change_of,
    desired,
    intent_of,
    resource,
    source_of,
    state_after,
)
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Kind
from trainctl.model.diagnostics import warning
from trainctl.model.run import RunStatus
from trainctl.model.specs.resource import LifecycleSpec
from trainctl.plan.graph import planned_addresses
from trainctl.plan.planner import is_applyable, is_complete, make_plan
from trainctl.plan.values import Observation, Plan, PlanInputs, PlanOptions, WeightsFacts
from trainctl.plugin_api.offers import Offer
from trainctl.plugin_api.provider import Capabilities, ResourceStatus


def actions(plan: Plan) -> dict[str, Action]:
    """Action by address, in the plan's order."""
    return {str(change.address): change.action for change in plan.changes}


def errors(plan: Plan) -> list[str]:
    """The summaries of what forbids applying it."""
    return [one.summary for one in plan.diagnostics if one.severity.value == "error"]


def test_everything_is_created_in_the_order_of_the_graph() -> None:
    """A job comes after the project, cluster and weights it needs."""
    plan = make_plan(PlanScenario().inputs())

    assert list(actions(plan)) == ["project.demo", "cluster.lab", "weights.qwen3", "job.sft"]
    assert set(actions(plan).values()) == {Action.CREATE}
    assert is_applyable(plan)
    assert is_complete(plan)


def test_destroy_goes_the_other_way() -> None:
    """Destroying takes what depends on a resource before the resource."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    plan = make_plan(world.inputs(state, PlanOptions(destroy=True)))

    assert next(iter(actions(plan))) == "job.sft"
    assert set(actions(plan).values()) == {Action.DELETE}


def test_weights_that_moved_are_updated() -> None:
    """Another revision upstream is an update with its own reason, and the listing is unknown again."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    world.resolved = source_of("hf://Qwen/Qwen3-0.6B@main", 7, revision="f" * 40)

    change = change_of(make_plan(world.inputs(state)), "weights.qwen3")

    assert (change.action, change.reason) == (Action.UPDATE, ActionReason.SOURCE_MOVED)
    assert dict(change.after_unknown) == {"listing": True}


def test_weights_nobody_resolved_keep_their_record() -> None:
    """Without resolving, recorded weights are a no-op while source and patterns are the same."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    plan = make_plan(world.inputs(state, weights={}))

    assert not plan.has_changes
    assert plan.weights[0].bytes_mirrored == world.resolved.size


def test_weights_of_which_nothing_is_known_say_so() -> None:
    """Offline and never recorded: files and bytes are null, not zero, and unknown until apply."""
    plan = make_plan(PlanScenario().inputs(weights={at("weights.qwen3"): WeightsFacts(None)}))

    assert (plan.weights[0].files, plan.weights[0].bytes, plan.weights[0].bytes_upstream) == (
        None,
        None,
        None,
    )
    assert change_of(plan, "weights.qwen3").after_unknown["pin"] is True


def test_a_cluster_changes_provider_by_replacement() -> None:
    """Another provider replaces a cluster; another setting updates it in place."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    grown = PlanScenario(cluster={**world.cluster, "gpus": 1})
    moved = PlanScenario(cluster={**world.cluster, "provider": "other"})

    update = change_of(make_plan(grown.inputs(state)), "cluster.lab")
    change = change_of(make_plan(moved.inputs(state)), "cluster.lab")

    assert (update.action, update.replace_paths) == (Action.UPDATE, ())
    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.CANNOT_UPDATE)
    assert change.replace_paths == (("provider",),)


def test_what_could_not_be_looked_at_is_said_once() -> None:
    """A node's own warning says more than that of its cluster, and the mirror's says it of all weights; other nodes have no other."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    silent = warning("the mirror is unreachable: lab-0 doesn't answer", code="ssh-timeout")
    observed = {
        at("cluster.lab"): Observation(ResourceStatus.UNREACHABLE, detail="both are", unobserved=("lab/lab-0", "lab/lab-1")),
        at("weights.qwen3"): Observation(ResourceStatus.UNREACHABLE, detail=silent.summary),
    }  # fmt: skip

    def told(*unreachable_nodes: str) -> list[str]:
        inputs = world.inputs(state, observed=observed)
        given = replace(
            inputs, diagnostics=(silent,), unreachable_nodes=frozenset(unreachable_nodes)
        )
        return [one.summary for one in make_plan(given).diagnostics]

    assert told("lab/lab-0", "lab/lab-1") == [silent.summary]
    assert told("lab/lab-0") == [silent.summary, "both are"]


@pytest.mark.parametrize("address", ["cluster.lab", "weights.qwen3"])
def test_only_gone_is_gone(address: str) -> None:
    """What has vanished is created again and is drift; what can't be reached is kept, with a warning."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    def look(status: ResourceStatus) -> Plan:
        return make_plan(world.inputs(state, observed={at(address): Observation(status)}))

    gone = look(ResourceStatus.MISSING)
    assert (change_of(gone, address).action, change_of(gone, address).reason) == (
        Action.CREATE,
        ActionReason.MISSING,
    )
    assert [str(one.address) for one in gone.drift] == [address]
    for status in (ResourceStatus.UNREACHABLE, ResourceStatus.FORBIDDEN):
        kept = look(status)
        assert not kept.has_changes
        assert [one.address for one in kept.diagnostics] == [address]
        assert kept.drift == ()


def test_drift_is_what_differs_from_the_record() -> None:
    """An output found different is drift with both sides, and causes no change."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    found = Observation(ResourceStatus.PRESENT, {"mirror": "file:///elsewhere"})

    plan = make_plan(world.inputs(state, observed={at("weights.qwen3"): found}))

    assert not plan.has_changes
    assert plan.drift[0].before["mirror"] == "file:///mirror"
    assert (plan.drift[0].after or {})["mirror"] == "file:///elsewhere"


def test_refresh_only_changes_nothing() -> None:
    """A refresh-only plan holds no-ops and drift, and can be applied to record the drift."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    known = {key: value for key, value in state.resources.items() if key != at("job.sft")}
    state = replace(state, resources=known)
    world.cluster["gpus"] = 4
    gone = {at("cluster.lab"): Observation(ResourceStatus.MISSING)}

    plan = make_plan(world.inputs(state, PlanOptions(refresh_only=True), observed=gone))

    assert actions(plan) == {str(address): Action.NOOP for address in known}
    assert (len(plan.drift), is_applyable(plan)) == (1, True)


def test_refresh_only_needs_recorded_resources_alone() -> None:
    """Sources of weights that were never applied are not resolved for it."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    known = {key: value for key, value in state.resources.items() if key != at("weights.qwen3")}
    state = replace(state, resources=known)
    declared = world.inputs(state).desired

    assert planned_addresses(declared, state, PlanOptions(refresh_only=True)) == set(known)
    assert planned_addresses(declared, state, PlanOptions()) == set(declared.resources)


def test_protection_outlives_its_block() -> None:
    """prevent_destroy forbids destroying, also when only the state remembers it."""
    first = desired(
        resource("project.demo", {"name": "demo"}, lifecycle=LifecycleSpec(prevent_destroy=True))
    )
    state = state_after(make_plan(PlanInputs(first, State())))

    removed = make_plan(PlanInputs(desired(), state))
    destroyed = make_plan(PlanInputs(first, state, options=PlanOptions(destroy=True)))
    excluded = make_plan(
        PlanInputs(desired(), state, options=PlanOptions(excludes=(at("project.demo"),)))
    )

    assert errors(removed) == ["project.demo is protected and would be destroyed"]
    assert errors(destroyed) == ["project.demo is protected and would be destroyed"]
    assert not is_applyable(removed)
    assert errors(excluded) == []


def test_protecting_is_recorded() -> None:
    """Adding prevent_destroy alone is a change, as the state has to know it."""
    plain = resource("project.demo", {"name": "demo"})
    state = state_after(make_plan(PlanInputs(desired(plain), State())))
    guarded = replace(plain, lifecycle=LifecycleSpec(prevent_destroy=True))

    plan = make_plan(PlanInputs(desired(guarded), state))

    assert actions(plan) == {"project.demo": Action.UPDATE}
    assert not make_plan(PlanInputs(desired(guarded), state_after(plan, state))).has_changes


def test_target_takes_what_it_needs_and_nothing_else() -> None:
    """A target comes with its dependencies; the plan isn't complete."""
    plan = make_plan(PlanScenario().inputs(options=PlanOptions(targets=(at("weights.qwen3"),))))

    assert list(actions(plan)) == ["weights.qwen3"]
    assert not is_complete(plan)
    whole = make_plan(PlanScenario().inputs(options=PlanOptions(targets=(at("job.sft"),))))
    assert len(whole.changes) == 4


def test_exclude_leaves_out_what_needs_it() -> None:
    """Excluding weights leaves out the job that needs them."""
    plan = make_plan(PlanScenario().inputs(options=PlanOptions(excludes=(at("weights.qwen3"),))))

    assert list(actions(plan)) == ["project.demo", "cluster.lab"]


def test_destroying_a_target_takes_what_stands_on_it() -> None:
    """A destroyed cluster takes the jobs recorded as depending on it, and leaves the project."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    plan = make_plan(world.inputs(state, PlanOptions(destroy=True, targets=(at("cluster.lab"),))))

    assert list(actions(plan)) == ["job.sft", "cluster.lab"]


def test_destroying_all_but_one_keeps_what_that_needs() -> None:
    """Excluding a job from destroy keeps everything it stands on."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))

    plan = make_plan(world.inputs(state, PlanOptions(destroy=True, excludes=(at("job.sft"),))))

    assert plan.changes == ()


@pytest.mark.parametrize("flag", ["targets", "excludes", "replace", "run"])
def test_addresses_that_do_not_exist_are_errors(flag: str) -> None:
    """A misspelt address is an error that names the nearest one."""
    chosen: dict[str, Any] = {flag: (at("job.stf"),)}
    options = PlanOptions(**chosen)

    plan = make_plan(PlanScenario().inputs(options=options))

    assert [one.detail for one in plan.diagnostics] == ["Did you mean job.sft?"]
    assert not plan.usable


def test_a_live_run_keeps_its_machine() -> None:
    """A cluster can't be replaced or shrunk under a live run that goes on."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()), status=RunStatus.RUNNING)
    other = PlanScenario(cluster={**world.cluster, "provider": "other"})
    smaller = PlanScenario(cluster={**world.cluster, "nodes": 0})

    replaced = make_plan(other.inputs(state))
    shrunk = make_plan(smaller.inputs(state, node_names={at("cluster.lab"): ()}))

    expected = "cannot remove lab/lab-0 from cluster.lab while job.sft runs there"
    assert errors(replaced) == [expected]
    assert errors(shrunk) == [expected]


def test_what_an_interrupted_creation_left_goes_with_its_block() -> None:
    """An open intent of something that nobody wants and nobody recorded is a deletion."""
    first = change_of(make_plan(PlanScenario().inputs()), "weights.qwen3")
    state = State(open_intents={first.address: intent_of(first)})

    plan = make_plan(PlanInputs(desired(), state))

    assert [(one.action, one.reason) for one in plan.changes] == [
        (Action.DELETE, ActionReason.INTERRUPTED)
    ]


def test_an_interrupted_creation_is_carried_on_when_an_attempt_failed_too() -> None:
    """The key of a failed attempt at the very same is used again."""
    world = PlanScenario()
    first = change_of(make_plan(world.inputs()), "weights.qwen3")
    state = State(orphaned_intents={first.address: (intent_of(first, "failed-key"),)})

    change = change_of(make_plan(world.inputs(state)), "weights.qwen3")

    assert (change.action, change.resumes) == (Action.CREATE, "failed-key")


def test_an_interrupted_removal_is_carried_on() -> None:
    """A killed destroy is resumed with its keys; a resource wanted again is made whole instead."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    gone = change_of(make_plan(world.inputs(state, PlanOptions(destroy=True))), "cluster.lab")
    state = replace(state, open_intents={gone.address: intent_of(gone)})

    destroyed = change_of(make_plan(world.inputs(state, PlanOptions(destroy=True))), "cluster.lab")
    wanted = change_of(make_plan(world.inputs(state)), "cluster.lab")

    assert (destroyed.action, destroyed.resumes) == (Action.DELETE, "interrupted-key")
    assert (wanted.action, wanted.reason, wanted.resumes) == (
        Action.UPDATE,
        ActionReason.INTERRUPTED,
        None,
    )


def test_removals_come_after_what_used_them() -> None:
    """Weights that a job no longer uses go after the job was given its new run."""
    world = PlanScenario()
    state = state_after(make_plan(world.inputs()))
    world.job["weights"] = []
    kept = [one for one in world.resources() if one.address.kind is not Kind.WEIGHTS]
    job = replace(kept[-1], depends_on=(at("project.demo"), at("cluster.lab")))

    plan = make_plan(world.inputs(state, desired=desired(*kept[:-1], job)))

    changed = [str(one.address) for one in plan.changes if one.action is not Action.NOOP]
    assert changed == ["job.sft", "weights.qwen3"]


def test_records_in_a_circle_are_still_ordered() -> None:
    """Recorded dependencies that point at each other don't stop a destroy."""
    one = resource("weights.a", {"source": "file:./a"}, "weights.b")
    two = resource("weights.b", {"source": "file:./b"}, "weights.a")
    state = state_after(make_plan(PlanInputs(desired(one, two), State())))

    plan = make_plan(PlanInputs(desired(), state))

    assert sorted(actions(plan)) == ["weights.a", "weights.b"]


def test_a_source_that_nothing_pins_is_a_warning() -> None:
    """Unlocked sources are one warning together, and patterns that match nothing one each."""
    world = PlanScenario()
    facts = WeightsFacts(world.resolved, unmatched_patterns={"*.gguf": None, "*.jsn": "*.json"})

    plan = make_plan(world.inputs(weights={at("weights.qwen3"): facts}))

    assert [one.summary for one in plan.diagnostics] == [
        "the pattern '*.gguf' matches no file",
        "the pattern '*.jsn' matches no file",
        "not pinned in trainctl.lock yet: weights.qwen3",
    ]
    assert plan.diagnostics[1].detail.startswith("Did you mean '*.json'?")
    assert "To pin the revision, apply" in plan.diagnostics[2].detail
    assert plan.usable


def test_nobody_is_said_to_pin_a_source_where_the_lock_stays_as_it_is() -> None:
    """``--lockfile=readonly`` writes nothing, so that the next apply may use something else."""
    world = PlanScenario()
    inputs = world.inputs(weights={at("weights.qwen3"): WeightsFacts(world.resolved)})

    (told,) = make_plan(replace(inputs, lock_readonly=True)).diagnostics

    assert "the revision is not recorded" in told.detail
    assert "To pin the revision, apply" not in told.detail


def test_the_provider_declares_settings_that_force_a_replacement() -> None:
    """Another machine type replaces a created machine; other settings are updated in place."""

    def declare(**settings: Any) -> PlanInputs:
        lab = resource("cluster.lab", {"provider": "cloud", **settings}, provider="cloud")
        capabilities = Capabilities(creates_machines=True, replacement_settings=("machine",))
        return PlanInputs(desired(lab), state, capabilities={"cloud": capabilities})

    state = State()
    state = state_after(make_plan(declare(machine="small", tag="a")))

    larger = change_of(make_plan(declare(machine="large", tag="a")), "cluster.lab")
    renamed = change_of(make_plan(declare(machine="small", tag="b")), "cluster.lab")

    assert (larger.action, larger.replace_paths) == (Action.REPLACE, (("machine",),))
    assert renamed.action is Action.UPDATE


def test_a_plan_shows_machines_that_cost_money() -> None:
    """Creating and destroying them is noted; updating them is not."""

    def plan_cluster(state: State, destroy: bool = False, **settings: Any) -> Plan:
        lab = resource("cluster.lab", {"provider": "cloud", **settings}, provider="cloud")
        options, priced = PlanOptions(destroy=destroy), {"cloud": Capabilities(costs_money=True)}
        return make_plan(PlanInputs(desired(lab), state, options=options, capabilities=priced))

    plan = plan_cluster(State())
    state = state_after(plan)

    assert change_of(plan, "cluster.lab").note == "its machines cost money until they are destroyed"
    removed = plan_cluster(state, destroy=True)
    assert change_of(removed, "cluster.lab").note == "its machines stop costing money"
    assert change_of(plan_cluster(state, tag="b"), "cluster.lab").note == ""


def test_machines_that_cost_money_are_created_after_mirroring() -> None:
    """The cluster waits for the weights of its jobs, though it doesn't depend on them."""
    cluster, weights = at("cluster.lab"), at("weights.qwen3")
    offer = Offer("big", 8, "H100", "a", 9.0, "table", "2026-01-01", "spot")
    inputs = replace(PlanScenario().inputs(), offers={cluster: (offer,)})
    provider = inputs.desired.resources[cluster].provider

    for costs, first in ((True, weights), (False, cluster)):
        plan = make_plan(replace(inputs, capabilities={provider: Capabilities(costs_money=costs)}))
        change = change_of(plan, "cluster.lab")
        assert change.waits_for == ((weights,) if costs else ())
        assert weights not in change.depends_on
        order = [one.address for one in plan.changes]
        assert min(order.index(cluster), order.index(weights)) == order.index(first)
        assert plan.offers == {cluster: (offer,)}
