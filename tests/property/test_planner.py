"""What holds for every plan: fixed point, order, determinism, digest, files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.plans import CODE, at, desired, resource, source_of, state_after
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunStatus
from trainctl.model.specs.checks import JobLifecycle, RerunCause
from trainctl.model.specs.resource import DesiredResource
from trainctl.plan.plan_file import read_plan, write_plan
from trainctl.plan.planner import make_plan
from trainctl.plan.values import (
    CodeTree,
    Plan,
    PlanInputs,
    PlanOptions,
    WeightsFacts,
)
from trainctl.plugin_api.provider import Node

ENDED = st.sampled_from([RunStatus.COMPLETED, RunStatus.STOPPED])
REMOVES = (Action.DELETE, Action.FORGET)


@st.composite
def manifests(draw: st.DrawFn) -> PlanInputs:
    clusters = [f"c{n}" for n in range(draw(st.integers(1, 2)))]
    sources = [f"w{n}" for n in range(draw(st.integers(0, 3)))]
    resources = [resource("project.p", {"name": "p", "labels": draw(labels())})]
    for name in clusters:
        settings = {"provider": "local", "nodes": 1, "gpus": draw(st.integers(0, 8))}
        resources.append(resource(f"cluster.{name}", settings, provider="local"))
    facts = {}
    for name in sources:
        resources.append(resource(f"weights.{name}", {"source": f"hf://a/{name}"}))
        source = source_of(f"hf://a/{name}", *draw(st.lists(st.integers(0, 99), max_size=3)))
        facts[at(f"weights.{name}")] = WeightsFacts(
            source, draw(st.integers(0, source.size)), locked=True
        )
    jobs = range(draw(st.integers(0, 3)))
    resources += [_job(draw, number, clusters, sources) for number in jobs]
    code = {row.address: _code(draw) for row in resources if row.address.kind is Kind.JOB}
    nodes: dict[Address, tuple[Node, ...]] = {
        at(f"cluster.{c}"): (Node(c, f"{c}-0"),) for c in clusters
    }
    return PlanInputs(desired(*resources), State(), code=code, weights=facts, planned_nodes=nodes)


def labels() -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=2)


def _code(draw: st.DrawFn) -> CodeTree:
    return replace(CODE, digest="sha256:" + draw(st.sampled_from("abc")) * 64)


def _job(draw: st.DrawFn, number: int, clusters: list[str], sources: list[str]) -> DesiredResource:
    cluster = draw(st.sampled_from(clusters))
    chosen = draw(st.lists(st.sampled_from(sources), unique=True)) if sources else []
    earlier = [f"job.j{n}" for n in range(number) if draw(st.booleans())]
    attributes = {
        "project": "p",
        "cluster": cluster,
        "compute": {"node_count": 1},
        "runtime": {"start_commands": (draw(st.text(max_size=8)),)},
        "weights": [
            {"address": f"weights.{item}", "mount_location": f"weights/{item}"} for item in chosen
        ],
        "labels": draw(labels()),
        "priority": draw(st.integers(0, 2)),
        "code": ".",
    }
    needs = ["project.p", f"cluster.{cluster}", *(f"weights.{item}" for item in chosen), *earlier]
    causes = draw(st.sets(st.sampled_from(get_args(RerunCause))))
    lifecycle = JobLifecycle(rerun_on=tuple(sorted(causes)))
    return resource(f"job.j{number}", attributes, *needs, lifecycle=lifecycle)


def over(inputs: PlanInputs, state: State, **more: Any) -> PlanInputs:
    return replace(inputs, state=state, **more)


@given(manifests(), ENDED)
def test_a_plan_after_its_apply_is_all_no_op(inputs: PlanInputs, status: RunStatus) -> None:
    state = state_after(make_plan(inputs), status=status)

    again = make_plan(over(inputs, state))

    assert {change.action for change in again.changes} <= {Action.NOOP}
    assert not any(change.reason for change in again.changes)


@given(manifests(), manifests(), ENDED)
def test_a_second_plan_after_any_change_is_all_no_op(
    first: PlanInputs, second: PlanInputs, status: RunStatus
) -> None:
    state = state_after(make_plan(first), status=status)
    state = state_after(make_plan(over(second, state)), state, status)

    again = make_plan(over(second, state))

    assert not again.has_changes


@given(manifests(), manifests())
def test_order_respects_the_graph(first: PlanInputs, second: PlanInputs) -> None:
    state = state_after(make_plan(first))
    for options in (PlanOptions(), PlanOptions(destroy=True)):
        plan = make_plan(over(second, state, options=options))
        place = {change.address: index for index, change in enumerate(plan.changes)}
        for change in plan.changes:
            for needed in _needed(change.address, plan, state):
                assert place[needed] < place[change.address]


def _needed(address: Address, plan: Plan, state: State) -> set[Address]:
    """The addresses that must come before this one."""
    changes = {change.address: change for change in plan.changes}
    change = changes[address]
    if change.action not in REMOVES:
        kept = {item.address for item in plan.changes if item.action not in REMOVES}
        return kept & {*change.depends_on}
    recorded = state.resources.items()
    return changes.keys() & {other for other, record in recorded if address in record.depends_on}


@given(manifests())
def test_the_digest_covers_pins_and_code(inputs: PlanInputs) -> None:
    digest = make_plan(inputs).digest
    other = {
        name: replace(facts, resolved=source_of("hf://a/other", 12345))
        for name, facts in inputs.weights.items()
    }
    code = dict.fromkeys(inputs.code, replace(CODE, digest="sha256:" + "d" * 64))

    if other:
        assert make_plan(replace(inputs, weights=other)).digest != digest
    if code:
        assert make_plan(replace(inputs, code=code)).digest != digest


@given(manifests(), st.randoms())
def test_plans_do_not_depend_on_the_order_of_the_inputs(inputs: PlanInputs, random: Any) -> None:
    resources = list(inputs.desired.resources.items())
    random.shuffle(resources)
    shuffled = replace(inputs, desired=replace(inputs.desired, resources=dict(resources)))

    assert make_plan(shuffled) == make_plan(inputs)


@given(manifests(), manifests())
def test_any_plan_is_read_as_it_was_written(first: PlanInputs, second: PlanInputs) -> None:
    inputs = over(second, state_after(make_plan(first), status=RunStatus.RUNNING))
    plan = make_plan(inputs)

    assert read_plan(write_plan(plan, inputs.desired, "1"), "p").plan == plan


@given(manifests(), st.data())
def test_targets_are_closed(inputs: PlanInputs, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(sorted(inputs.desired.resources)))

    plan = make_plan(replace(inputs, options=PlanOptions(targets=(target,))))

    held = {change.address for change in plan.changes}
    assert target in held
    for change in plan.changes:
        assert set(change.depends_on) <= held
