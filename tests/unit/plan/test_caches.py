"""Training caches in a plan: what stays, what goes, what is too full, and who would leave his behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import PlanScenario, at, change_of, desired, resource, state_after
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.diagnostics import Diagnostic
from trainctl.plan.planner import make_plan
from trainctl.plan.values import CacheFacts, Plan, PlanInputs, PlanOptions

HERE = CacheFacts("/node/caches/demo", 1_200_000_000, 34, 1e9)
TEAM = CacheFacts("/node/caches/.team", 0, 0, 1e9)


def recorded(name: str = "demo-lab", cluster: str = "lab", **attributes: Any) -> RecordedResource:
    """A cache of the project, as the state has it."""
    found = {"scope": "project", "project": "demo", "cluster": cluster, "size": None, "dir": None}
    needs = (at(f"cluster.{cluster}"), at("project.demo"))
    return RecordedResource(
        at(f"cache.{name}"),
        "local",
        {**found, **attributes},
        {"directory": HERE.directory},
        needs,
    )


def world_with(
    cache: RecordedResource, world: PlanScenario | None = None
) -> tuple[PlanScenario, State]:
    """A world that was applied in full, with a cache besides."""
    world = world or PlanScenario()
    state = state_after(make_plan(world.inputs()))
    return world, replace(state, resources={**state.resources, cache.address: cache})


def moved(*, affinity: bool = True) -> PlanScenario:
    """The world whose job wants its cache on a second cluster."""
    world = PlanScenario()
    world.job["cluster"] = "other"
    world.job["runtime"]["cache_config"] = {"enabled": True, "require_cache_affinity": affinity}
    return world


def with_other_cluster(inputs: PlanInputs) -> PlanInputs:
    """The inputs with a second cluster, like the first."""
    wanted = dict(inputs.desired.resources)
    first = wanted[at("cluster.lab")]
    wanted[at("cluster.other")] = replace(first, address=at("cluster.other"))
    return replace(inputs, desired=replace(inputs.desired, resources=wanted))


def of_caches(plan: Plan) -> list[Diagnostic]:
    """What the plan says about caches."""
    return [one for one in plan.diagnostics if one.code.startswith("cache-")]


def plan_of_move(*, affinity: bool, facts: tuple[CacheFacts, ...], new: bool = False) -> Plan:
    """The plan for a job that moves away from its project's cache, or is new and begins elsewhere."""
    _, state = world_with(recorded())
    if new:
        kept = {key: value for key, value in state.resources.items() if key != at("job.sft")}
        state = replace(state, resources=kept)
    inputs = with_other_cluster(moved(affinity=affinity).inputs(state))
    return make_plan(replace(inputs, caches={at("cache.demo-lab"): facts} if facts else {}))


def test_a_job_that_must_stay_near_its_cache_is_an_error() -> None:
    """It says where the cache is, what it holds, and both ways out."""
    (found,) = of_caches(plan_of_move(affinity=True, facts=(HERE, TEAM)))

    assert (found.severity, found.code, found.address) == (
        "error",
        "cache-on-other-cluster",
        "job.sft",
    )
    for words in ("cache.demo-lab on cluster.lab", "1.2 GB in 34 files", "/node/caches/demo"):
        assert words in found.summary
    assert "require_cache_affinity: false" in found.detail
    assert "declare a cache of demo for other" in found.detail


@pytest.mark.parametrize(("affinity", "new"), [(False, False), (True, True)])
def test_otherwise_the_empty_cache_is_a_warning(affinity: bool, new: bool) -> None:
    """For a job that may move, and for a new one, which leaves nothing of its own behind; the cache stays."""
    plan = plan_of_move(affinity=affinity, facts=(HERE,), new=new)

    assert [(one.severity, one.code) for one in of_caches(plan)] == [("warning", "cache-empty")]
    assert change_of(plan, "cache.demo-lab").action is Action.NOOP


def test_what_nobody_could_ask_about_may_hold_something() -> None:
    """A node that doesn't answer is no reason to leave a cache behind."""
    (found,) = of_caches(plan_of_move(affinity=True, facts=()))

    assert found.code == "cache-on-other-cluster"
    assert "size unknown" in found.summary


def test_an_empty_cache_holds_nobody() -> None:
    """There is nothing to be near to; unless files that could not be counted may be in it."""
    empty = replace(HERE, bytes=0, files=0)
    assert of_caches(plan_of_move(affinity=True, facts=(empty,))) == []
    (found,) = of_caches(plan_of_move(affinity=True, facts=(replace(empty, is_complete=False),)))
    assert found.code == "cache-on-other-cluster"


@pytest.mark.parametrize("declared", [False, True])
def test_ranks_whose_caches_are_on_different_disks_are_warned_about(declared: bool) -> None:
    """The variables are named, and a directory that the nodes share is no problem."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = 2
    world.job["runtime"]["cache_config"] = {"enabled": True}
    inputs = world.inputs()
    if declared:
        wanted = dict(inputs.desired.resources)
        cache = recorded(dir="/shared/demo")
        wanted[cache.address] = resource(str(cache.address), cache.attributes)
        inputs = replace(inputs, desired=replace(inputs.desired, resources=wanted))
    (found,) = of_caches(make_plan(inputs))

    assert (found.severity, found.code, found.address) == ("warning", "cache-per-node", "job.sft")
    assert ("$BT_RW_CACHE_DIR" in found.summary) is not declared
    assert "$BT_TEAM_CACHE_DIR" in found.summary


@pytest.mark.parametrize(
    ("bytes_", "whole", "said"),
    [(10**9, True, None), (10**9 + 1, True, "contains 1.0 GB in 34 files, more than its size limit of 1GB"), (2 * 10**9, False, "contains more than 2.0 GB")],
)  # fmt: skip
def test_a_cache_that_is_too_full_is_a_warning(bytes_: int, whole: bool, said: str | None) -> None:
    """More than its size; the plan can be applied all the same."""
    cache = recorded("work", size="1GB")
    world, state = world_with(cache)
    inputs = world.inputs(state)
    wanted = {
        **inputs.desired.resources,
        cache.address: resource(
            "cache.work", cache.attributes, "cluster.lab", "project.demo", provider="local"
        ),
    }
    facts = {cache.address: (replace(HERE, bytes=bytes_, is_complete=whole),)}
    plan = make_plan(
        replace(inputs, desired=replace(inputs.desired, resources=wanted), caches=facts)
    )

    found = of_caches(plan)
    assert [one.code for one in found] == (["cache-too-full"] if said else [])
    assert plan.usable
    if said:
        assert said in found[0].summary
        assert "trainctl cache clear demo" in found[0].detail


def test_a_cache_that_came_with_a_job_goes_with_its_project() -> None:
    """Without a job that uses it, it stays; with its project or cluster it goes, and the plan says what goes with it."""
    world, state = world_with(recorded())
    facts = {at("cache.demo-lab"): (HERE, TEAM)}

    stays = make_plan(replace(world.inputs(state), caches=facts))
    goes = make_plan(replace(world.inputs(state, desired=desired()), caches=facts))
    destroyed = make_plan(replace(world.inputs(state, PlanOptions(destroy=True)), caches=facts))

    assert change_of(stays, "cache.demo-lab").action is Action.NOOP
    assert "deleted with its project" in change_of(stays, "cache.demo-lab").note
    for plan in (goes, destroyed):
        change = change_of(plan, "cache.demo-lab")
        assert change.action is Action.DELETE
        assert change.note == "/node/caches/demo is deleted with 1.2 GB in 34 files"


def test_a_declared_cache_goes_with_its_block() -> None:
    """As any resource does."""
    world, state = world_with(recorded("work", size="1TB"))

    assert change_of(make_plan(world.inputs(state)), "cache.work").action is Action.DELETE


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (replace(HERE, others=("another-lineage+demo-lab",)), "is kept for 1 other"),
        (replace(HERE, others=("another-lineage+a", "another-lineage+b")), "is kept for 2 others"),
        (replace(HERE, ours=False), "is kept: trainctl did not create it"),
        (replace(HERE, bytes=0, files=0), ""),
    ],
)
def test_what_stays_is_told_too(facts: CacheFacts, note: str) -> None:
    """Others' references, and directories that were there before."""
    world, state = world_with(recorded())
    inputs = world.inputs(state, PlanOptions(destroy=True))
    plan = make_plan(replace(inputs, caches={at("cache.demo-lab"): (facts,)}))

    assert change_of(plan, "cache.demo-lab").note.endswith(note)
    assert "deleted" not in change_of(plan, "cache.demo-lab").note


def test_those_who_go_together_keep_nothing_from_each_other() -> None:
    """The team's cache goes with the last project, also where several go in one plan."""
    world, state = world_with(recorded())
    shared = replace(
        TEAM, bytes=5, files=1, others=(f"{state.lineage}+second", f"{state.lineage}+demo-lab")
    )
    second = recorded("second", dir="/mnt/second")
    state = replace(state, resources={**state.resources, second.address: second})
    facts = {at("cache.demo-lab"): (HERE, shared), second.address: (HERE, shared)}

    plan = make_plan(replace(world.inputs(state, PlanOptions(destroy=True)), caches=facts))

    assert (
        "/node/caches/.team is deleted with 5 B in 1 file" in change_of(plan, "cache.second").note
    )
