"""Jobs that begin with each other's checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import EMPTY, PlanScenario, at, desired, resource, state_after
from trainctl.ledger.state import State
from trainctl.model.run import RunStatus
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs

ROUND = "job.a → job.b → job.c → job.a"


def chain(*pairs: tuple[str, str], state: State = EMPTY, rate: str = "1") -> PlanInputs:
    """What is planned from, for jobs of which each first one needs the second."""
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


def told(plan: Plan) -> list[tuple[str, str | None, str]]:
    """The errors about circles."""
    found = (one for one in plan.diagnostics if one.code == "dependency-cycle")
    return [(str(one.severity), one.address, one.summary) for one in found]


@pytest.mark.parametrize("more", [(), (("d", "a"),)])
def test_none_of_which_has_run_is_an_error_that_names_them(
    more: tuple[tuple[str, str], ...],
) -> None:
    """Once, and not for who only needs one of them."""
    plan = make_plan(chain(("a", "b"), ("b", "c"), ("c", "a"), *more))

    assert told(plan) == [("error", "job.a", f"runs would wait for each other: {ROUND}")]
    assert not plan.usable


def test_a_chain_is_none() -> None:
    """Nor are two ways to one job."""
    assert told(make_plan(chain(("a", "b"), ("b", "c"), ("a", "c")))) == []


@pytest.mark.parametrize(
    ("status", "errors"),
    [
        (RunStatus.COMPLETED, 0),
        (RunStatus.RUNNING, 0),
        (RunStatus.FAILED, 1),
        (RunStatus.STOPPED, 1),
    ],
)
def test_those_that_have_run_may_take_turns(status: RunStatus, errors: int) -> None:
    """Each begins after the newest run of the other, if that completed or goes on; a circle of failed ones never begins."""
    begun = make_plan(chain(("a", "b")))
    state = state_after(begun, status=status)

    changed = make_plan(chain(("a", "b"), ("b", "a"), state=state, rate="2"))

    assert len(told(changed)) == errors


def test_one_that_has_run_is_enough() -> None:
    """Who needs it begins, and it after that one."""
    state = state_after(make_plan(chain(("a", "b"))))
    left = {at("job.a")}
    state = replace(
        state, resources={one: it for one, it in state.resources.items() if one not in left}
    )

    assert told(make_plan(chain(("a", "b"), ("b", "a"), state=state, rate="2"))) == []
