"""Training caches in a plan: what stays, what is deleted, what is too full, and jobs that leave theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import PlanScenario, at, change_of, desired, resource, state_after
from trainctl.base.protocol.training import TrainingCacheState
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.reports import CacheFacts
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs, PlanOptions

PROJECT = CacheFacts("/node/caches/demo", 1_200_000_000, 34, 1e9)
TEAM = CacheFacts("/node/caches/.team", 0, 0, 1e9)
CACHE = at("cache.demo-lab")
DESTROY = PlanOptions(destroy=True)


def test_a_node_reports_exactly_the_facts_of_a_cache() -> None:
    assert CacheFacts.__annotations__.keys() == TrainingCacheState.__annotations__.keys()


def recorded(name: str = "demo-lab", **attributes: Any) -> RecordedResource:
    """A recorded cache of the project."""
    values = {"scope": "project", "project": "demo", "cluster": "lab", "size": None, "dir": None}
    needs = (at("cluster.lab"), at("project.demo"))
    outputs = {"directory": PROJECT.directory}
    return RecordedResource(at(f"cache.{name}"), "local", {**values, **attributes}, outputs, needs)


def with_cache(*caches: RecordedResource) -> State:
    """The state after the scenario was applied, with these caches."""
    state = state_after(make_plan(PlanScenario().inputs()))
    added = {cache.address: cache for cache in caches}
    return replace(state, resources={**state.resources, **added})


def declare(inputs: PlanInputs, cache: RecordedResource) -> PlanInputs:
    """The same inputs with a declared cache."""
    declared = resource(str(cache.address), cache.attributes, *map(str, cache.depends_on), provider="local")  # fmt: skip
    resources = {**inputs.desired.resources, cache.address: declared}
    return replace(inputs, desired=replace(inputs.desired, resources=resources))


def cache_problems(plan: Plan) -> list[Diagnostic]:
    return [problem for problem in plan.diagnostics if problem.code.startswith("cache-")]


def plan_of_move(*facts: CacheFacts, affinity: bool = True, is_new: bool = False) -> Plan:
    """The plan for a job on another cluster than its project's cache."""
    world, state = PlanScenario(), with_cache(recorded())
    world.job["cluster"] = "other"
    world.job["runtime"]["cache_config"] = {"enabled": True, "require_cache_affinity": affinity}
    if is_new:
        kept = {key: value for key, value in state.resources.items() if key != at("job.sft")}
        state = replace(state, resources=kept)
    inputs = world.inputs(state)
    resources = dict(inputs.desired.resources)
    resources[at("cluster.other")] = replace(
        resources[at("cluster.lab")], address=at("cluster.other")
    )
    inputs = replace(inputs, desired=replace(inputs.desired, resources=resources))
    return make_plan(replace(inputs, caches={CACHE: facts} if facts else {}))


def test_a_job_that_must_stay_near_its_cache_is_an_error() -> None:
    (problem,) = cache_problems(plan_of_move(PROJECT, TEAM))
    assert (problem.severity, problem.code) == ("error", "cache-on-other-cluster")
    assert problem.address == "job.sft"
    for words in ("cache.demo-lab on cluster.lab", "1.2 GB in 34 files", "/node/caches/demo"):
        assert words in problem.summary
    assert "require_cache_affinity: false" in problem.detail
    assert "declare a cache of demo for other" in problem.detail


@pytest.mark.parametrize(("affinity", "is_new"), [(False, False), (True, True)])
def test_an_empty_cache_of_a_job_that_may_move_is_a_warning(affinity: bool, is_new: bool) -> None:
    """A new job leaves nothing of its own behind."""
    plan = plan_of_move(PROJECT, affinity=affinity, is_new=is_new)
    assert [(problem.severity, problem.code) for problem in cache_problems(plan)] == [
        ("warning", "cache-empty")
    ]
    assert change_of(plan, "cache.demo-lab").action is Action.NOOP


def test_an_unknown_cache_may_hold_something() -> None:
    """A node that is unreachable, or files that couldn't be counted."""
    empty = replace(PROJECT, bytes=0, files=0)
    assert cache_problems(plan_of_move(empty)) == []
    (unreachable,) = cache_problems(plan_of_move())
    (uncounted,) = cache_problems(plan_of_move(replace(empty, is_complete=False)))
    assert unreachable.code == uncounted.code == "cache-on-other-cluster"
    assert "size unknown" in unreachable.summary


@pytest.mark.parametrize("is_declared", [False, True])
def test_ranks_with_caches_on_different_disks_are_a_warning(is_declared: bool) -> None:
    """A declared directory may be shared by the nodes."""
    world = PlanScenario()
    world.job["compute"]["node_count"] = 2
    world.job["runtime"]["cache_config"] = {"enabled": True}
    inputs = world.inputs()
    if is_declared:
        inputs = declare(inputs, recorded(dir="/shared/demo"))
    (problem,) = cache_problems(make_plan(inputs))
    assert (problem.severity, problem.code) == ("warning", "cache-per-node")
    assert problem.address == "job.sft"
    assert ("$BT_RW_CACHE_DIR" in problem.summary) is not is_declared
    assert "$BT_TEAM_CACHE_DIR" in problem.summary


@pytest.mark.parametrize(
    ("size", "is_complete", "summary"),
    [
        (10**9, True, ""),
        (10**9 + 1, True, "contains 1.0 GB in 34 files, more than its size limit of 1GB"),
        (2 * 10**9, False, "contains more than 2.0 GB"),
    ],
)
def test_a_cache_beyond_its_size_is_a_warning(size: int, is_complete: bool, summary: str) -> None:
    cache = recorded("work", size="1GB")
    inputs = declare(PlanScenario().inputs(with_cache(cache)), cache)
    facts = replace(PROJECT, bytes=size, is_complete=is_complete)
    plan = make_plan(replace(inputs, caches={cache.address: (facts,)}))
    problems = cache_problems(plan)
    assert [problem.code for problem in problems] == ["cache-too-full"] * bool(summary)
    assert plan.usable
    for problem in problems:
        assert summary in problem.summary
        assert "trainctl cache clear demo" in problem.detail


def test_a_cache_is_deleted_with_its_project_or_its_block() -> None:
    """One without a block stays without a job that uses it."""
    inputs = replace(PlanScenario().inputs(with_cache(recorded())), caches={CACHE: (PROJECT, TEAM)})
    kept = change_of(make_plan(inputs), "cache.demo-lab")
    assert kept.action is Action.NOOP
    assert "deleted with its project" in kept.note
    for more in ({"desired": desired()}, {"options": DESTROY}):
        change = change_of(make_plan(replace(inputs, **more)), "cache.demo-lab")
        assert change.action is Action.DELETE
        assert change.note == "/node/caches/demo is deleted with 1.2 GB in 34 files"
    declared = PlanScenario().inputs(with_cache(recorded("work", size="1TB")))
    assert change_of(make_plan(declared), "cache.work").action is Action.DELETE


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"others": ("another-lineage+demo-lab",)}, "is kept for 1 other"),
        ({"others": ("another-lineage+a", "another-lineage+b")}, "is kept for 2 others"),
        ({"ours": False}, "is kept: trainctl did not create it"),
        ({"bytes": 0, "files": 0}, ""),
    ],
)
def test_a_directory_that_stays_is_noted(facts: dict[str, Any], note: str) -> None:
    """For references of others, or as it was there before."""
    inputs = PlanScenario().inputs(with_cache(recorded()), DESTROY)
    plan = make_plan(replace(inputs, caches={CACHE: (replace(PROJECT, **facts),)}))
    change = change_of(plan, "cache.demo-lab")
    assert change.note.endswith(note)
    assert "deleted" not in change.note


def test_the_teams_cache_is_deleted_with_the_last_project() -> None:
    """Also when several are deleted by one plan."""
    second = recorded("second", dir="/mnt/second")
    state = with_cache(recorded(), second)
    others = (f"{state.lineage}+second", f"{state.lineage}+demo-lab")
    team = replace(TEAM, bytes=5, files=1, others=others)
    caches = {CACHE: (PROJECT, team), second.address: (PROJECT, team)}
    plan = make_plan(replace(PlanScenario().inputs(state, DESTROY), caches=caches))
    note = change_of(plan, "cache.second").note
    assert "/node/caches/.team is deleted with 5 B in 1 file" in note
