"""What jobs that are to start lack on their hosts, and what is said of hosts before anything moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.projects.plans import PlanScenario, at, resource
from trainctl.plan.planner import make_plan
from trainctl.plan.values import PlanInputs

JOB, LAB = at("job.sft"), at("cluster.lab")


def on_node(inputs: PlanInputs, **facts: Any) -> PlanInputs:
    """The inputs with more facts about the only node."""
    (node,) = inputs.nodes[LAB]
    return replace(inputs, nodes={LAB: (replace(node, **facts),)})


def told(inputs: PlanInputs) -> list[tuple[str, str, str | None]]:
    """Severity, code and address of what a plan says of hosts."""
    codes = ("missing-on-host", "stops-at-logout", "writable-mount")
    found = make_plan(inputs).diagnostics
    return [(str(one.severity), one.code, one.address) for one in found if one.code in codes]


def test_what_is_missing_on_the_host_or_in_the_code_is_an_error() -> None:
    """Of each job, before anything moves."""
    missing = ("error", "missing-on-host", "job.sft")
    inputs = PlanScenario().inputs()

    assert told(inputs) == []
    assert told(on_node(inputs, missing_requirements={JOB: ("program nvcc not found",)})) == [
        missing
    ]
    assert told(
        replace(inputs, missing_requirements={JOB: ("the code has no file train.py",)})
    ) == [missing]


def test_a_node_that_ends_runs_at_logout_is_told_once() -> None:
    """However many jobs start there."""
    world = PlanScenario()
    other = resource("job.other", world.job, "project.demo", "cluster.lab", "weights.qwen3")
    inputs = world.inputs()
    wanted = {**inputs.desired.resources, other.address: other}
    inputs = replace(
        inputs,
        desired=replace(inputs.desired, resources=wanted),
        code={**inputs.code, other.address: world.code},
    )

    assert told(on_node(inputs, logout="loginctl enable-linger")) == [
        ("warning", "stops-at-logout", None)
    ]


def test_links_in_place_of_mounts_protect_nothing() -> None:
    """A warning for each directory that is to be read-only, but for those below the root, which are refused anyway."""
    world = PlanScenario()
    world.job["mounts"] = [
        {"host_path": "/data/a", "mount_location": "data/a", "read_only": True},
        {"host_path": "/data/b", "mount_location": "data/b", "read_only": False},
    ]
    advisory = ("warning", "writable-mount", "job.sft")

    assert told(world.inputs()) == []
    assert told(on_node(world.inputs(), mount="link")) == [advisory]
