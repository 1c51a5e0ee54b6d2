"""Saved plans: read back as written, refused when they are something else, stale when the world moved."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import EMPTY, LINEAGE, PlanScenario, at, state_after
from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.run import RunStatus
from trainctl.model.specs.resource import LifecycleSpec
from trainctl.plan.plan_file import read_plan, remaining, staleness, write_plan
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanOptions


def a_plan(state: State = EMPTY, **options: Any) -> Plan:
    """A plan with a bit of everything."""
    world = PlanScenario(job_lifecycle=LifecycleSpec(ignore_changes=("labels.a",)))
    return make_plan(world.inputs(state, PlanOptions(**options)))


def test_a_plan_comes_back_as_it_was() -> None:
    """Writing and reading a plan changes nothing, with a live run, errors and a chosen address in it."""
    world = PlanScenario(mount="link")
    state = state_after(make_plan(world.inputs()), status=RunStatus.RUNNING, started_at=1.5)
    options = PlanOptions(run=(at("job.sft"),))
    inputs = world.inputs(state, options)
    plan = make_plan(inputs)

    saved = read_plan(write_plan(plan, inputs.desired, "0.1.0"), "p.bin")

    assert saved.plan == plan
    assert saved.desired == inputs.desired
    assert saved.written_by == "0.1.0"


def test_a_saved_plan_has_the_resources_of_its_plan_only() -> None:
    """What a target leaves out is not in the file, but for clusters: one of them may keep the mirror."""
    world = PlanScenario()
    inputs = world.inputs(options=PlanOptions(targets=(at("weights.qwen3"),)))

    saved = read_plan(write_plan(make_plan(inputs), inputs.desired, "0.1.0"), "p.bin")

    assert list(saved.desired.resources) == [at("cluster.lab"), at("weights.qwen3")]


def changed(text: str, **values: Any) -> str:
    """The document with some of its values exchanged."""
    return json.dumps({**json.loads(text), **values})


@pytest.mark.parametrize(
    ("make", "summary"),
    [
        (lambda text: "", "p.bin is not a plan file"),
        (lambda text: "PK\x03\x04", "p.bin is not a plan file"),
        (lambda text: "[1, 2]", "p.bin is not a plan file"),
        (lambda text: '{"terraform_version": "1.11.4"}', "p.bin is not a plan file"),
        (lambda text: text[:-100], "p.bin is truncated"),
        (lambda text: text.replace("train.py", "evil.py"), "p.bin is corrupt"),
        (lambda text: changed(text, plan={}), "p.bin is corrupt"),
        (lambda text: changed(text, checksum=None), "p.bin is corrupt"),
        (
            lambda text: changed(text, trainctl_plan={"major": 2, "minor": 0}, written_by="9.0"),
            "p.bin was saved by a newer trainctl (9.0)",
        ),
    ],
)
def test_what_is_no_plan_is_refused(make: Any, summary: str) -> None:
    """Foreign, cut, altered and newer files are each refused in one sentence."""
    text = write_plan(a_plan(), PlanScenario().inputs().desired, "0.1.0")

    with pytest.raises(TrainctlError) as caught:
        read_plan(make(text), "p.bin")

    assert caught.value.summary == summary


def test_a_newer_minor_is_read() -> None:
    """A file of a newer minor version is read, and what it adds beside the body is ignored."""
    text = write_plan(a_plan(), PlanScenario().inputs().desired, "0.1.0")

    saved = read_plan(changed(text, trainctl_plan={"major": 1, "minor": 7}, more="new"), "p.bin")

    assert saved.plan == a_plan()


def test_a_plan_is_fresh_until_an_address_moves() -> None:
    """An outcome on an address that the plan changes or reads makes it stale, and it says which."""
    state = state_after(a_plan())
    plan = a_plan(state, run=(at("job.sft"),))
    elsewhere = replace(state, versions={**state.versions, at("job.other"): 4})
    moved = replace(state, versions={**state.versions, at("cluster.lab"): 3})

    assert staleness(plan, state) == ()
    assert staleness(plan, elsewhere) == ()
    assert [str(one) for one in staleness(plan, moved)] == [
        "cluster.lab: changed 2 times since the plan was made"
    ]


def test_another_state_is_stale() -> None:
    """A plan is for one lineage."""
    state = state_after(a_plan())
    plan = a_plan(state)

    assert [one.address for one in staleness(plan, replace(state, lineage="other"))] == [None]


def test_an_interrupted_apply_of_the_same_plan_carries_on() -> None:
    """Moves made under the plan itself leave it fresh; what is done is skipped; all done is stale."""
    plan = a_plan()
    project = at("project.demo")
    half = State(LINEAGE, 1, versions={project: 1}, plans={project: (plan.digest, 0)})
    done = {change.address: (plan.digest, 0) for change in plan.changes}
    whole = State(LINEAGE, 4, versions=dict.fromkeys(done, 1), plans=done)
    foreign = replace(half, plans={project: ("sha256:other", 0)})

    assert staleness(plan, half) == ()
    assert project not in {change.address for change in remaining(plan, half)}
    assert len(remaining(plan, half)) == 3
    assert [str(one) for one in staleness(plan, whole)] == ["the plan is already applied"]
    assert [one.address for one in staleness(plan, foreign)] == [project]
