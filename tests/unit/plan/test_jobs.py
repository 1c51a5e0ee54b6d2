"""When a job runs again: ``tests/cases/plan/jobs.yaml``, observed runs, and keys that other releases know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.projects.plans import (
    EMPTY,
    PlanScenario,
    at,
    change_of,
    desired,
    intent_of,
    resource,
    run_record,
    source_of,
    state_after,
)
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.json_codec import to_json
from trainctl.model.run import RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.job_spec import Compute, HostMount, Retry
from trainctl.model.specs.runtime import Runtime
from trainctl.plan.planner import make_plan
from trainctl.plan.values import (
    Change,
    CodeTree,
    Observation,
    Plan,
    PlanOptions,
    RerunRequest,
)
from trainctl.plugin_api.provider import ResourceStatus

JOB, CLUSTER = at("job.sft"), at("cluster.lab")
OTHER_WEIGHTS = source_of("hf://Qwen/Qwen3-0.6B@main", 7, revision="f" * 40)
OTHER_CODE = CodeTree("sha256:" + "99" * 32, 13, 40_000)
EVALUATION = PlanScenario()
REQUESTS = {
    "run": PlanOptions(run=(JOB,)),
    "replace": PlanOptions(replace=(JOB,)),
    "resume": PlanOptions(run=(JOB,)),
    "destroy": PlanOptions(destroy=True),
}
RESUME = RerunRequest({"resume_from": "latest"}, "")


def ran(world: PlanScenario, status: RunStatus = RunStatus.COMPLETED, **run: Any) -> State:
    """The state after the first run of the job."""
    return state_after(make_plan(world.inputs()), status=status, **run)


def planned(
    world: PlanScenario, state: State, options: PlanOptions = PlanOptions(), **more: Any
) -> Change:
    return change_of(make_plan(world.inputs(state, options, **more)), "job.sft")


def observation(value: str) -> Observation:
    """What a refresh finds of a resource: its status, or that of its run."""
    if value.upper() in ResourceStatus.__members__:
        return Observation(ResourceStatus[value.upper()])
    run = run_record(1, RunStatus[value.upper()]).to_json()
    return Observation(ResourceStatus.PRESENT, {"runs": [run]})


def plan_of(case: dict[str, Any]) -> Plan:
    """The plan of a case."""
    ignored, causes = case.get("ignore_changes", ()), case.get("rerun_on", ("config",))
    lifecycle = JobLifecycle(ignore_changes=tuple(ignored), rerun_on=tuple(causes))
    world = PlanScenario(job_lifecycle=lifecycle)
    state, more = EMPTY, dict[str, Any]()
    if "ran" in case:
        state = ran(world, RunStatus[case["ran"].upper()], **case.get("run", {}))
        job = state.resources[JOB]
        job = replace(job, attributes={**job.attributes, **case.get("recorded", {})})
        state = replace(state, resources={**state.resources, JOB: job})
    number = 2 if "ran" in case else 1
    if "interrupted" in case:
        starts = {JOB: RESUME} if case["interrupted"] == "resume" else {}
        options = REQUESTS.get(case["interrupted"], PlanOptions())
        attempt = planned(world, state, options, starts=starts)
        state = replace(state, open_intents={JOB: intent_of(attempt, f"key-{number}")})
    if "began" in case:
        run = run_record(number, RunStatus[case["began"].upper()])
        more["unrecorded_runs"] = {JOB: (run,)}
    if "code" in case.get("changed", ()):
        world.code = OTHER_CODE
    if "weights" in case.get("changed", ()):
        world.resolved = OTHER_WEIGHTS
    world.job |= case.get("job", {})
    if "command" in case:
        world.job["runtime"]["start_commands"] = [case["command"]]
    observed = case.get("observed", {})
    more["observed"] = {at(address): observation(value) for address, value in observed.items()}
    if "removed" in case:
        more["desired"] = desired(*world.resources()[:3])
    options = REQUESTS.get(case.get("request", ""), PlanOptions())
    return make_plan(world.inputs(state, options, **more))


@pytest.mark.parametrize("case", cases("plan/jobs"))
def test_a_job_runs_again_when_it_has_to(case: dict[str, Any]) -> None:
    plan = plan_of(case)
    change = change_of(plan, "job.sft")
    values = {
        "action": change.action.name.lower(),
        "reason": change.reason.name.lower() if change.reason else None,
        "note": change.note,
        "replace_paths": [".".join(map(str, path)) for path in change.replace_paths],
        "stops": change.stops.number if change.stops else None,
        "resumes": change.resumes,
        "resume_from": (change.after or {}).get("resume_from"),
    }
    assert {name: value for name, value in values.items() if value} == case["planned"]
    assert len(plan.diagnostics) == case.get("warnings", 0)
    assert [str(drift.address) for drift in plan.drift] == case.get("drift", [])
    if change.action in (Action.NOOP, Action.UPDATE):
        assert change.after == {**(change.before or {}), **case.get("job", {})}
        assert not change.after_unknown
    ended = RunStatus.__members__.get(case.get("observed", {}).get("job.sft", "").upper())
    assert ended is None or change.outputs["runs"][-1]["status"] == ended
    if change.reason is ActionReason.BY_REQUEST:
        assert (change.after or {})["code"]["digest"] == OTHER_CODE.digest


def test_a_new_run_records_its_code_and_pins() -> None:
    world = PlanScenario()
    change = planned(world, State())
    code = {"path": "src", "digest": world.code.digest, "files": 12, "bytes": 34_100}
    assert change.after is not None
    assert change.after["code"] == code
    assert change.after["weight_pins"] == {"weights.qwen3": world.resolved.pin}
    assert change.after_unknown == {"runs": True}


@pytest.mark.parametrize(
    ("status", "change", "planned_reason"),
    [
        ("RUNNING", "", None),
        ("COMPLETED", "", None),
        ("RUNNING", "replaced", ActionReason.FOLLOWED_RUN),
        ("COMPLETED", "replaced", ActionReason.FOLLOWED_RUN),
        ("RUNNING", "has run again", None),
        ("COMPLETED", "has run again", ActionReason.FOLLOWED_RUN),
    ],
)
def test_a_job_for_each_checkpoint_follows_new_runs(
    status: str, change: str, planned_reason: ActionReason | None
) -> None:
    """In the plan that replaces the other job; if that has run again already, once the evaluations have ended."""

    def plan(world: PlanScenario, state: State = EMPTY) -> Plan:
        follows = {"job": "job.sft", "every": 1, "newest_only": False}
        job = {**EVALUATION.job, "for_each_checkpoint": follows}
        needs = ("project.demo", "cluster.lab", "weights.qwen3", "job.sft")
        both = desired(*world.resources(), resource("job.eval", job, *needs))
        code = {JOB: world.code, at("job.eval"): world.code}
        return make_plan(world.inputs(state, desired=both, code=code))

    world = PlanScenario()
    state = state_after(plan(world), status=RunStatus[status], created_at=2.0)
    training = state.resources[JOB]
    created_at = 3.0 if change == "has run again" else 1.0
    runs = [{**training.outputs["runs"][0], "created_at": created_at}]
    training = replace(training, outputs={"runs": runs})
    state = replace(state, resources={**state.resources, JOB: training})
    if change == "replaced":
        world.job["runtime"] = {**world.job["runtime"], "start_commands": ["other"]}
    changed = change_of(plan(world, state), "job.eval")

    assert changed.reason is planned_reason
    assert changed.action is (Action.REPLACE if planned_reason else Action.NOOP)
    stopped = status == "RUNNING" and planned_reason
    assert (changed.stops and changed.stops.number) == (1 if stopped else None)


def test_a_live_run_that_would_be_stopped_is_described() -> None:
    world = PlanScenario()
    world.job["compute"] = {"node_count": 1, "accelerator": "H100:8"}
    state = ran(world, RunStatus.RUNNING, started_at=5.0)
    world.job["runtime"]["start_commands"] = ["other"]
    stops = planned(world, state).stops
    assert stops is not None
    assert (stops.id, stops.number, stops.started_at, stops.gpus) == ("run0001", 1, 5.0, 8)


def test_an_interrupted_creation_is_deleted_before_its_cluster() -> None:
    """As recorded resources are: a cluster isn't deleted under a run without a record."""
    world = PlanScenario()
    state = ran(world)
    recorded = {address: record for address, record in state.resources.items() if address != JOB}
    intents = {JOB: intent_of(planned(world, State()))}
    state = replace(state, resources=recorded, open_intents=intents)

    plan = make_plan(world.inputs(state, PlanOptions(destroy=True)))

    order = [change.address for change in plan.changes]
    assert order.index(JOB) < order.index(CLUSTER)


def complete_world() -> PlanScenario:
    """A scenario whose job has every key of this release."""
    world = PlanScenario()
    world.job |= {
        "runtime": to_json(Runtime(("python train.py",))),
        "compute": to_json(Compute()),
        "retry": to_json(Retry()),
        "mounts": [to_json(HostMount("/data", "/app/data"))],
    }
    return world


@pytest.mark.parametrize(
    "path",
    [
        ("runtime", "shm_size"),
        ("runtime", "checkpointing_config"),
        ("runtime", "cache_config", "require_cache_affinity"),
        ("mounts", 0, "read_only"),
        ("retry", "delay"),
        ("compute",),
    ],
    ids=str,
)
def test_a_default_that_an_older_release_did_not_record_is_no_change(
    path: tuple[str | int, ...],
) -> None:
    old = complete_world()
    parent: Any = old.job
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]

    change = planned(complete_world(), ran(old))

    assert (change.action, change.reason, change.note) == (Action.NOOP, None, "")
    assert change.after == change.before


def test_a_new_key_with_another_value_is_a_new_run() -> None:
    old, new = complete_world(), complete_world()
    del old.job["runtime"]["cache_config"]["require_cache_affinity"]
    del old.job["runtime"]["shm_size"]
    new.job["runtime"]["cache_config"]["require_cache_affinity"] = False

    change = planned(new, ran(old))

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.CANNOT_UPDATE)
    assert change.replace_paths == (("runtime", "cache_config", "require_cache_affinity"),)


def test_a_key_of_a_newer_release_is_no_change() -> None:
    old = complete_world()
    old.job["runtime"]["tomorrow"] = 1
    change = planned(complete_world(), ran(old))
    assert (change.action, change.reason) == (Action.NOOP, None)
