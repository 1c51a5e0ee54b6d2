"""What a plan says of images: which are needed where, whether they are there, and whether anything can run them."""

from __future__ import annotations

from dataclasses import replace

from tests.support.projects.plans import PlanScenario, at
from trainctl.model.json_codec import from_json, to_json
from trainctl.plan.planner import make_plan
from trainctl.plan.values import ImageFacts, ImageSelection, Plan
from trainctl.views.plan.text import plan_text

WISH = ImageSelection("pytorch/pytorch:2.7.0", None)


def planned(found: ImageFacts | None, engine: str | None = None) -> Plan:
    """The plan of a job in an image, on a node that says this of it; without private mounts there."""
    world = PlanScenario(mount="link")
    world.job["image"] = {"base_image": WISH.image, "docker_auth": None}
    world.job["runtime"]["engine"] = engine
    inputs = world.inputs()
    (node,) = inputs.nodes[at("cluster.lab")]
    images = {} if found is None else {WISH: found}
    return make_plan(replace(inputs, nodes={at("cluster.lab"): (replace(node, images=images),)}))


def test_an_image_is_named_with_its_engine() -> None:
    """A row for the rank; weights are mounted by the container, whatever mounts the host can make."""
    plan = planned(ImageFacts("podman", present=True, rdma=True))
    (line,) = plan.images
    assert "  Containers on lab/lab-0 get /dev/infiniband." in plan_text(plan)

    assert (line.node, line.image, line.engine, line.present) == (
        "lab/lab-0",
        WISH.image,
        "podman",
        True,
    )
    assert [one.mount for one in plan.deliveries] == ["container"]
    assert plan.usable
    assert from_json(Plan, to_json(plan)).images == plan.images


def test_without_an_engine_nothing_can_be_applied() -> None:
    """The error names job and node, why none works, and what to do."""
    plan = planned(ImageFacts(None, present=False, why="no container engine works: none is there"))
    (problem,) = (one for one in plan.diagnostics if one.severity.value == "error")

    assert problem.summary == (
        "job.sft needs a container engine, but on lab/lab-0 no container engine works: none is there"
    )
    assert "runtime.engine: host" in problem.detail
    assert not plan.usable


def test_a_node_that_was_not_asked_forbids_nothing() -> None:
    """Whether the image is there is then unknown."""
    (line,) = planned(None).images

    assert (line.engine, line.present) == (None, None)


def test_on_the_host_an_image_is_not_needed() -> None:
    """``engine: host`` runs the job without it, and mounts are the host's again."""
    plan = planned(None, engine="host")

    assert plan.images == ()
    assert [one.mount for one in plan.deliveries] == ["link"]


def test_spot_nodes_that_a_cluster_does_not_have() -> None:
    """A warning: the run starts on the nodes that there are."""
    world = PlanScenario()
    world.job["compute"]["availability_model"] = "spot"

    plan = make_plan(world.inputs())

    assert [(one.code, one.severity.value) for one in plan.diagnostics] == [
        ("no-spot-nodes", "warning")
    ]
    assert plan.usable


def test_shared_memory_is_a_containers() -> None:
    """A job on the host has what its node has: a size that it asks for is told, and forbids nothing."""
    world = PlanScenario()
    world.job["runtime"]["shm_size"] = "8Gi"

    plan = make_plan(world.inputs())

    assert [(one.code, one.summary) for one in plan.diagnostics] == [
        ("no-shm-size", "shm_size of job.sft is ignored: the job doesn't run in a container")
    ]
    assert plan.usable
