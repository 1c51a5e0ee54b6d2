"""What new runs lack on their nodes: requirements, mounts, images, spot nodes, and lingering sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.projects.plans import PlanScenario, at, errors, resource, with_facts
from trainctl.base.protocol.host import ImageAvailability
from trainctl.model.json_codec import from_json, to_json
from trainctl.plan.planner import make_plan
from trainctl.plan.values import ImageSelection, Plan, PlanInputs
from trainctl.views.plan.text import plan_text

JOB, LAB = at("job.sft"), at("cluster.lab")
IMAGE = ImageSelection("pytorch/pytorch:2.7.0", None)


def with_node(inputs: PlanInputs, **facts: Any) -> PlanInputs:
    """The inputs with more facts about the only node."""
    (node,) = inputs.nodes[LAB]
    return replace(inputs, nodes={LAB: (with_facts(node, **facts),)})


def problems(inputs: PlanInputs) -> list[tuple[str, str, str | None]]:
    """Severity, code and address of the problems of a plan."""
    return [(str(item.severity), item.code, item.address) for item in make_plan(inputs).diagnostics]


def test_a_missing_requirement_is_an_error() -> None:
    inputs = PlanScenario().inputs()
    missing = {JOB: ("program nvcc not found",)}
    assert problems(inputs) == []
    expected = [("error", "missing-on-host", "job.sft")]
    assert problems(with_node(inputs, missing_requirements=missing)) == expected
    assert problems(replace(inputs, missing_requirements=missing)) == expected


def test_a_node_that_ends_runs_at_logout_is_reported_once() -> None:
    world = PlanScenario()
    other = resource("job.other", world.job, "project.demo", "cluster.lab", "weights.qwen3")
    inputs = world.inputs()
    resources = {**inputs.desired.resources, other.address: other}
    inputs = replace(
        inputs,
        desired=replace(inputs.desired, resources=resources),
        code={**inputs.code, other.address: world.code},
    )
    result = problems(with_node(inputs, logout={"survives": False, "why": "a", "fix": "b"}))
    assert result == [("warning", "stops-at-logout", None)]


def test_a_symlink_for_a_read_only_mount_is_a_warning() -> None:
    world = PlanScenario()
    world.job["weights"] = []
    world.job["mounts"] = [
        {"host_path": "/data/a", "mount_location": "data/a", "read_only": True},
        {"host_path": "/data/b", "mount_location": "data/b", "read_only": False},
    ]
    assert problems(world.inputs()) == []
    expected = [("warning", "writable-mount", "job.sft")]
    assert problems(with_node(world.inputs(), mount="link")) == expected


def plan_with_image(facts: ImageAvailability | None, engine: str | None = None) -> Plan:
    """The plan of a job in an image, on a node without namespaces."""
    world = PlanScenario(mount="link")
    world.job["image"] = {"base_image": IMAGE.image, "docker_auth": None}
    world.job["runtime"]["engine"] = engine
    return make_plan(with_node(world.inputs(), images={IMAGE: facts} if facts else {}))


def test_an_image_is_listed_with_its_engine() -> None:
    """Weights are mounted by the container."""
    plan = plan_with_image({"engine": "podman", "present": True, "why": "", "rdma": True})
    (row,) = plan.images
    assert (row.node, row.image) == ("lab/lab-0", IMAGE.image)
    assert (row.engine, row.present) == ("podman", True)
    assert "  Containers on lab/lab-0 get /dev/infiniband." in plan_text(plan)
    assert [delivery.mount for delivery in plan.deliveries] == ["container"]
    assert plan.usable
    assert from_json(Plan, to_json(plan)).images == plan.images


def test_a_missing_container_engine_is_an_error() -> None:
    why = "no container engine works: none is there"
    plan = plan_with_image({"engine": None, "present": False, "why": why, "rdma": False})
    assert errors(plan) == [f"job.sft needs a container engine, but on lab/lab-0 {why}"]
    assert "runtime.engine: host" in "".join(problem.detail for problem in plan.diagnostics)


def test_an_image_is_unknown_on_an_unreachable_node_and_not_needed_on_the_host() -> None:
    (row,) = plan_with_image(None).images
    assert (row.engine, row.present) == (None, None)
    plan = plan_with_image(None, engine="host")
    assert plan.images == ()
    assert [delivery.mount for delivery in plan.deliveries] == ["link"]


def test_spot_nodes_and_shared_memory_that_a_node_does_not_have_are_warnings() -> None:
    world = PlanScenario()
    world.job["compute"]["availability_model"] = "spot"
    world.job["runtime"]["shm_size"] = "8Gi"
    plan = make_plan(world.inputs())
    assert {problem.code for problem in plan.diagnostics} == {"no-spot-nodes", "no-shm-size"}
    assert plan.usable
