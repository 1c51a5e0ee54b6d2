"""Jobs that begin with each other's checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import EMPTY, PlanScenario, at, desired, resource, state_after
from trainctl.ledger.state import State
from trainctl.model.run import RunStatus
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs


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
    found = [one for one in plan.diagnostics if one.code == "dependency-cycle"]
    return [(one.address, one.summary) for one in found]


@pytest.mark.parametrize("more", [(), (("d", "a"),)])
def test_a_cycle_of_new_jobs_is_an_error(more: tuple[tuple[str, str], ...]) -> None:
    """Once, and not for a job that only needs one of them."""
    plan = make_plan(chain(("a", "b"), ("b", "c"), ("c", "a"), *more))
    summary = "runs would wait for each other: job.a → job.b → job.c → job.a"
    assert cycles(plan) == [("job.a", summary)]
    assert not plan.usable


def test_two_ways_to_one_job_are_no_cycle() -> None:
    assert cycles(make_plan(chain(("a", "b"), ("b", "c"), ("a", "c")))) == []


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


def test_one_job_of_a_cycle_that_ran_is_enough() -> None:
    state = state_after(make_plan(chain(("a", "b"))))
    kept = {name: record for name, record in state.resources.items() if name != at("job.a")}
    inputs = chain(("a", "b"), ("b", "a"), state=replace(state, resources=kept), rate="2")
    assert cycles(make_plan(inputs)) == []
