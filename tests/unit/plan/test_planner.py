"""Plans of jobs that load each other's checkpoints, and of moved, removed and imported resources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import (
    EMPTY,
    PlanScenario,
    at,
    change_of,
    desired,
    resource,
    state_after,
)
from trainctl.desired.values import DesiredMoves
from trainctl.ledger.planned_edits import NO_EDITS, StateEdits
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.run import RunStatus
from trainctl.plan.plan_file import read_plan, remaining, resumed, staleness, write_plan
from trainctl.plan.planner import is_applyable, make_plan
from trainctl.plan.values import Plan, PlanInputs, PlanOptions
from trainctl.views.plan.json import plan_json
from trainctl.views.plan.pages import plan_markdown
from trainctl.views.plan.text import plan_text


def chain(*pairs: tuple[str, str], state: State = EMPTY, rate: str = "1") -> PlanInputs:
    """Inputs with jobs of which each first one needs the second."""
    world = PlanScenario()
    project, cluster, weights, _ = world.resources()
    runtime = {**world.job["runtime"], "start_commands": [f"python train.py --lr {rate}"]}
    names = sorted({name for pair in pairs for name in pair})
    jobs = [
        resource(
            f"job.{name}",
            {**world.job, "runtime": runtime},
            *("project.demo", "cluster.lab", "weights.qwen3"),
            *(f"job.{needed}" for first, needed in pairs if first == name),
        )
        for name in names
    ]
    code = {at(f"job.{name}"): world.code for name in names}
    return world.inputs(state, desired=desired(project, cluster, weights, *jobs), code=code)


def cycles(plan: Plan) -> list[tuple[str | None, str]]:
    """Address and summary of the problems of cycles."""
    diagnostics = [problem for problem in plan.diagnostics if problem.code == "dependency-cycle"]
    return [(diagnostic.address, diagnostic.summary) for diagnostic in diagnostics]


@pytest.mark.parametrize("more", [(), (("d", "a"),)])
def test_a_cycle_of_new_jobs_is_an_error(more: tuple[tuple[str, str], ...]) -> None:
    """Once, and not for a job that only needs one of them."""
    plan = make_plan(chain(("a", "b"), ("b", "c"), ("c", "a"), *more))
    summary = "runs would wait for each other: job.a → job.b → job.c → job.a"
    assert cycles(plan) == [("job.a", summary)]
    assert not plan.usable


@pytest.mark.parametrize(
    ("status", "errors"),
    [
        (RunStatus.COMPLETED, 0),
        (RunStatus.RUNNING, 0),
        (RunStatus.FAILED, 1),
        (RunStatus.STOPPED, 1),
    ],
)
def test_jobs_that_ran_may_need_each_other(status: RunStatus, errors: int) -> None:
    """Each starts after the newest run of the other, if that completed or is live."""
    state = state_after(make_plan(chain(("a", "b"))), status=status)
    plan = make_plan(chain(("a", "b"), ("b", "a"), state=state, rate="2"))
    assert len(cycles(plan)) == errors


def test_two_ways_to_one_job_and_a_cycle_of_which_one_job_ran_are_no_cycles() -> None:
    assert cycles(make_plan(chain(("a", "b"), ("b", "c"), ("a", "c")))) == []
    state = state_after(make_plan(chain(("a", "b"))))
    kept = {name: record for name, record in state.resources.items() if name != at("job.a")}
    inputs = chain(("a", "b"), ("b", "a"), state=replace(state, resources=kept), rate="2")
    assert cycles(make_plan(inputs)) == []


OLD, JOB = at("job.old"), at("job.sft")


BACK, FORTH = StateEdits({JOB: OLD}), StateEdits({OLD: JOB})


def before_the_move(status: RunStatus = RunStatus.COMPLETED) -> State:
    """The state of the scenario with its job under another name."""
    return BACK.applied_to(state_after(make_plan(PlanScenario().inputs()), status=status))


def moved(state: State, options: PlanOptions = PlanOptions()) -> Plan:
    """The plan of a manifest that renames it."""
    return make_plan(PlanScenario().inputs(FORTH.applied_to(state), options, edits=FORTH))


def test_a_moved_job_is_no_new_run() -> None:
    """It is a change to approve, which the digest covers."""
    plan = moved(before_the_move())
    change = change_of(plan, "job.sft")
    assert (change.action, change.previous) == (Action.NOOP, OLD)
    assert plan.has_changes
    assert is_applyable(plan)
    assert plan_text(plan)[2:-1] == [
        "  ~ job.sft moved from job.old",
        "",
        "Plan: 0 to add, 0 to change, 0 to destroy, 1 to move.",
    ]
    assert "- `job.sft` (`moved from job.old`)" in plan_markdown(plan)
    (row,) = [item for item in plan_json(plan)["resource_changes"] if "previous_address" in item]
    assert (row["address"], row["previous_address"]) == ("job.sft", "job.old")
    assert row["change"]["actions"] == ["no-op"]
    unmoved = PlanScenario().inputs(FORTH.applied_to(before_the_move()))
    assert plan.digest != make_plan(unmoved).digest


def test_a_moved_job_may_change_too() -> None:
    world = PlanScenario()
    state = before_the_move()
    world.job["runtime"] = {"start_commands": ["other"]}
    plan = make_plan(world.inputs(FORTH.applied_to(state), edits=FORTH))
    assert change_of(plan, "job.sft").action is Action.REPLACE
    assert "  # (moved from job.old)" in plan_text(plan)


def test_a_saved_move_is_applied_once() -> None:
    """The plan is stale if the job was changed after it was made."""
    state = before_the_move()
    world = PlanScenario()
    plan = moved(state)
    plan = read_plan(write_plan(plan, desired(*world.resources()), "1"), "p").plan
    assert plan.edits == FORTH
    assert not [*staleness(plan, state)]
    assert remaining(plan, state) == plan
    after = FORTH.applied_to(state)
    assert not [*staleness(plan, after)]
    assert not remaining(plan, after).has_changes
    again = make_plan(PlanScenario().inputs(after))
    assert again.digest != plan.digest
    assert resumed(again, plan.digest, {}, after, FORTH.addresses) is not None
    (reason,) = staleness(plan, replace(state, versions={**state.versions, OLD: 9}))
    assert reason.startswith(f"{JOB}: changed")
    assert FORTH.applied_to(FORTH.applied_to(state)) == FORTH.applied_to(state)
    assert NO_EDITS.applied_to(state) is state


def test_a_move_outside_of_the_selection() -> None:
    """All moves are one entry, so a targeted plan refuses them."""
    plan = moved(before_the_move(), PlanOptions(targets=(at("project.demo"),)))
    assert not plan.usable
    summaries = [problem.summary for problem in plan.diagnostics]
    assert "job.sft is moved from job.old, but not selected" in summaries


def test_removed_resources() -> None:
    """Forgotten although its run is live, or destroyed although it ended."""
    for destroy, status, action, reason in (
        (False, RunStatus.RUNNING, Action.FORGET, ActionReason.REMOVED),
        (True, RunStatus.COMPLETED, Action.DELETE, ActionReason.NO_CONFIG),
    ):
        state = before_the_move(status)
        moves = DesiredMoves(removed={OLD: destroy})
        inputs = PlanScenario().inputs(state)
        plan = make_plan(replace(inputs, desired=replace(inputs.desired, moves=moves)))
        change = change_of(plan, "job.old")
        assert (change.action, change.reason, change.stops) == (action, reason, None)


def test_an_imported_run() -> None:
    """A declared job with an imported record is not created."""
    state = state_after(make_plan(PlanScenario().inputs()))
    record = state.resources[JOB]
    left = {address: resource for address, resource in state.resources.items() if address != JOB}
    empty = replace(state, resources=left, versions={})
    edits = StateEdits(imports=(record,))
    plan = make_plan(PlanScenario().inputs(edits.applied_to(empty), edits=edits))
    run = record.outputs["runs"][-1]["id"]
    assert f"  ~ job.sft imported with run {run}" in plan_text(plan)
    (row,) = [item for item in plan_json(plan)["resource_changes"] if item["address"] == "job.sft"]
    assert row["change"]["importing"] == {"id": run}
    assert plan_json(plan)["summary"]["imports"] == 1
