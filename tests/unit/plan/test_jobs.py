"""When a job runs again."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import (
    PlanScenario,
    at,
    change_of,
    desired,
    intent_of,
    run_record,
    source_of,
    state_after,
)
from trainctl.ledger.state import State
from trainctl.manifest.types.job import Compute, HostMount, Retry
from trainctl.manifest.types.runtime import Runtime
from trainctl.model.action import Action, ActionReason
from trainctl.model.run import RunStatus
from trainctl.model.specs.resource import LifecycleSpec
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Change, CodeTree, Observation, PlanOptions
from trainctl.plugin_api.provider import ResourceStatus

MOVED = source_of("hf://Qwen/Qwen3-0.6B@main", 7, revision="f" * 40)
OTHER_CODE = CodeTree("sha256:" + "99" * 32, 13, 40_000)


def ran(world: PlanScenario, status: RunStatus = RunStatus.COMPLETED, **of_run: Any) -> State:
    """The state after the first run of that world's job ended so."""
    return state_after(make_plan(world.inputs()), status=status, **of_run)


def planned(
    world: PlanScenario, state: State, options: PlanOptions = PlanOptions(), **more: Any
) -> Change:
    """What happens to the job."""
    return change_of(make_plan(world.inputs(state, options, **more)), "job.sft")


def with_rate(world: PlanScenario) -> PlanScenario:
    """The same world with another learning rate."""
    changed = copy.deepcopy(world)
    changed.job["runtime"]["start_commands"] = ["python train.py --lr 2e-4"]
    return changed


def test_a_job_that_never_ran_is_created() -> None:
    """A new job is a creation whose runs are known only after apply."""
    change = planned(PlanScenario(), State())

    assert (change.action, change.reason, change.before) == (Action.CREATE, None, None)
    assert change.after_unknown == {"runs": True}


def test_after_holds_code_and_pins() -> None:
    """A job's after values name its code's digest and the pin of each of its weights."""
    world = PlanScenario()

    after = planned(world, State()).after or {}

    assert after["code"] == {
        "path": "src",
        "digest": world.code.digest,
        "files": 12,
        "bytes": 34_100,
    }
    assert after["weight_pins"] == {"weights.qwen3": world.resolved.pin}


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.STOPPED, RunStatus.RUNNING])
def test_unchanged_is_a_no_op(status: RunStatus) -> None:
    """A job that completed, was stopped or runs is left alone while nothing changes."""
    world = PlanScenario()

    change = planned(world, ran(world, status))

    assert (change.action, change.reason, change.note) == (Action.NOOP, None, "")


def test_changed_configuration_is_a_new_run() -> None:
    """Another command replaces the run and names the path that forces it."""
    change = planned(with_rate(PlanScenario()), ran(PlanScenario()))

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.CANNOT_UPDATE)
    assert change.replace_paths == (("runtime", "start_commands", 0),)
    assert change.stops is None


def test_a_live_run_that_would_be_stopped_is_named() -> None:
    """A new run while one is live says which run it stops."""
    world = PlanScenario()
    world.job["compute"] = {"node_count": 1, "accelerator": "H100:8"}
    state = state_after(make_plan(world.inputs()), status=RunStatus.RUNNING, started_at=5.0)

    stops = planned(with_rate(world), state).stops

    assert stops is not None
    assert (stops.number, stops.started_at, stops.gpus) == (1, 5.0, 8)


@pytest.mark.parametrize("key", ["labels", "priority", "max_duration", "retry"])
def test_labels_and_priority_change_in_place(key: str) -> None:
    """Labels and priority are updated without a new run, also while one is live."""
    world = PlanScenario()
    state = ran(world, RunStatus.RUNNING)
    values = {"labels": {"team": "nlp"}, "retry": {"max_attempts": 5}}
    world.job[key] = values.get(key, 5)

    change = planned(world, state)

    assert (change.action, change.stops, dict(change.after_unknown)) == (Action.UPDATE, None, {})
    assert change.after == {**(change.before or {}), key: world.job[key]}


@pytest.mark.parametrize(
    ("what", "reason", "note"),
    [
        ("code", ActionReason.CODE_CHANGED, "code changed since run 1"),
        ("weights", ActionReason.WEIGHTS_CHANGED, "weights changed since run 1"),
    ],
)
def test_code_and_weights_alone_are_told_not_run(
    what: str, reason: ActionReason, note: str
) -> None:
    """Changed code or moved weights alone are a no-op that says so and keeps what the last run ran."""
    world = PlanScenario()
    state = ran(world)
    if what == "code":
        world.code = OTHER_CODE
    else:
        world.resolved = MOVED

    change = planned(world, state)

    assert (change.action, change.reason, change.note) == (Action.NOOP, reason, note)
    assert change.after == change.before


@pytest.mark.parametrize(
    ("cause", "path"),
    [("code", ("code", "digest")), ("weights", ("weight_pins", "weights.qwen3"))],
)
def test_rerun_on_makes_a_cause_a_trigger(cause: str, path: tuple[str, str]) -> None:
    """A cause that rerun_on names makes a new run, with the path that forces it."""
    world = PlanScenario(job_lifecycle=LifecycleSpec(rerun_on=("config", cause)))
    state = ran(world)
    world.code, world.resolved = OTHER_CODE, MOVED

    change = planned(world, state)

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.BY_TRIGGERS)
    assert change.replace_paths == (path,)


def test_a_failed_run_runs_again_once_something_changed() -> None:
    """After a failure changed code is enough."""
    world = PlanScenario()
    state = ran(world, RunStatus.FAILED)
    world.code = OTHER_CODE

    change = planned(world, state)

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.RUN_FAILED)


def test_a_failed_run_with_nothing_changed_is_a_warning() -> None:
    """A failed job is left alone, with a warning that says how to run it again."""
    world = PlanScenario()

    plan = make_plan(world.inputs(ran(world, RunStatus.FAILED)))

    assert not plan.has_changes
    assert [(one.severity.value, one.address) for one in plan.diagnostics] == [
        ("warning", "job.sft")
    ]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (RunStatus.DEPLOY_FAILED, ActionReason.DEPLOY_FAILED),
        (RunStatus.LOST, ActionReason.RUN_LOST),
    ],
)
def test_what_never_got_to_its_end_is_planned_again(
    status: RunStatus, reason: ActionReason
) -> None:
    """A run that could not be deployed or was lost is planned again with nothing changed."""
    world = PlanScenario()

    change = planned(world, ran(world, status))

    assert (change.action, change.reason, change.stops) == (Action.REPLACE, reason, None)


def test_a_run_that_was_to_end_is_not_begun_again_because_it_was_lost() -> None:
    """Somebody asked for its end, and its node went before that could be told."""
    world = PlanScenario()

    change = planned(world, ran(world, RunStatus.LOST, stop_requested=True))

    assert change.action is Action.NOOP


def test_config_that_rerun_on_does_not_name_is_told_not_run() -> None:
    """Without config in rerun_on a changed command is a note, and the record stays that of the last run."""
    world = PlanScenario(job_lifecycle=LifecycleSpec(rerun_on=("code",)))
    state = ran(world)

    change = planned(with_rate(world), state)

    assert (change.action, change.reason) == (Action.NOOP, ActionReason.CONFIG_CHANGED)
    assert change.after == change.before


@pytest.mark.parametrize("flag", ["run", "replace"])
def test_a_run_by_request_takes_todays_values(flag: str) -> None:
    """run and --replace give one new run, with today's code, whatever has changed."""
    world = PlanScenario()
    state = ran(world)
    world.code = OTHER_CODE
    options = (
        PlanOptions(run=(at("job.sft"),))
        if flag == "run"
        else PlanOptions(replace=(at("job.sft"),))
    )

    change = planned(world, state, options)

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.BY_REQUEST)
    assert (change.after or {})["code"]["digest"] == OTHER_CODE.digest


def test_ignored_paths_keep_the_recorded_value() -> None:
    """A change under ignore_changes is no change."""
    lifecycle = LifecycleSpec(ignore_changes=("runtime.start_commands.0",))
    world = PlanScenario(job_lifecycle=lifecycle)
    state = ran(world)

    assert planned(with_rate(world), state).action is Action.NOOP


def test_an_ending_that_nobody_recorded_is_shown_and_no_drift() -> None:
    """A run that ended by itself is in the note, in the outputs and not in the drift."""
    world = PlanScenario()
    state = ran(world, RunStatus.RUNNING)
    ended = Observation(
        ResourceStatus.PRESENT, {"run": run_record(1, RunStatus.COMPLETED).to_json()}
    )

    plan = make_plan(world.inputs(state, observed={at("job.sft"): ended}))
    change = change_of(plan, "job.sft")

    assert (change.action, change.note, plan.drift) == (Action.NOOP, "run 1 completed", ())
    assert change.outputs["runs"][0]["status"] == RunStatus.COMPLETED


def test_an_observed_failure_counts_as_the_state_of_the_run() -> None:
    """A run recorded as running and seen failed runs again when its code changed."""
    world = PlanScenario()
    state = ran(world, RunStatus.RUNNING)
    failed = Observation(
        ResourceStatus.PRESENT, {"runs": [run_record(1, RunStatus.FAILED).to_json()]}
    )
    world.code = OTHER_CODE

    change = planned(world, state, observed={at("job.sft"): failed})

    assert (change.reason, change.stops) == (ActionReason.RUN_FAILED, None)


def test_a_live_run_goes_with_its_only_machine() -> None:
    """A run that can't be asked about is lost if the one node of its cluster is gone, and only then."""
    world = PlanScenario()
    state = ran(world, RunStatus.RUNNING)
    silent = Observation(ResourceStatus.UNREACHABLE)
    job, cluster = at("job.sft"), at("cluster.lab")

    lost = planned(
        world, state, observed={job: silent, cluster: Observation(ResourceStatus.MISSING)}
    )
    kept = planned(world, state, observed={job: silent, cluster: silent})

    assert (lost.action, lost.reason) == (Action.REPLACE, ActionReason.RUN_LOST)
    assert kept.action is Action.NOOP


def test_removing_an_ended_job_forgets_it() -> None:
    """A job whose block is gone is forgotten once its run has ended, and deleted while it is live."""
    world = PlanScenario()
    rest = desired(*world.resources()[:3])

    ended = planned(world, ran(world), desired=rest)
    live = planned(world, ran(world, RunStatus.RUNNING), desired=rest)

    assert (ended.action, ended.reason, ended.stops) == (Action.FORGET, ActionReason.ENDED, None)
    assert (live.action, live.reason) == (Action.DELETE, ActionReason.NO_CONFIG)
    assert live.stops is not None


def test_an_interrupted_start_is_carried_on() -> None:
    """A killed creation is resumed with its key while the same is wanted, and started anew otherwise."""
    world = PlanScenario()
    first = planned(world, State())
    state = State(open_intents={first.address: intent_of(first)})

    same, other = planned(world, state), planned(with_rate(world), state)

    assert (same.action, same.reason, same.resumes) == (
        Action.CREATE,
        ActionReason.INTERRUPTED,
        "interrupted-key",
    )
    assert (other.action, other.resumes) == (Action.CREATE, None)


def test_a_run_that_an_interrupted_start_began_is_live() -> None:
    """A change that doesn't carry it on would stop it, and says so, as of any live run; so does the end of the whole."""
    world = PlanScenario()
    first = planned(world, State())
    state = State(open_intents={first.address: intent_of(first, "key-1")})
    unrecorded_runs = {first.address: (run_record(1, RunStatus.RUNNING),)}

    same = planned(world, state, unrecorded_runs=unrecorded_runs)
    other = planned(with_rate(world), state, unrecorded_runs=unrecorded_runs)
    gone = planned(world, state, PlanOptions(destroy=True), unrecorded_runs=unrecorded_runs)
    ended = {first.address: (run_record(1, RunStatus.STOPPED),)}

    assert (same.resumes, same.stops) == ("key-1", None)
    assert other.stops is not None
    assert (other.stops.id, other.stops.number) == ("run0001", 1)
    assert (gone.action, gone.stops) == (Action.DELETE, other.stops)
    assert planned(with_rate(world), state, unrecorded_runs=ended).stops is None


def test_a_job_that_left_with_a_run_that_an_interrupted_start_began_is_not_forgotten() -> None:
    """Its run would be stopped, as a recorded one."""
    world = PlanScenario()
    state = ran(world)
    again = planned(world, state, PlanOptions(run=(at("job.sft"),)))
    state = replace(state, open_intents={again.address: intent_of(again, "key-2")})
    rest = [one for one in world.resources() if one.address != again.address]
    unrecorded_runs = {again.address: (run_record(2, RunStatus.RUNNING),)}

    change = planned(world, state, desired=desired(*rest), unrecorded_runs=unrecorded_runs)

    assert (change.action, change.stops and change.stops.number) == (Action.DELETE, 2)


def test_what_an_attempt_alone_knows_goes_before_what_it_stands_on() -> None:
    """As what is recorded does: a cluster is not taken from under a run that nobody recorded."""
    world = PlanScenario()
    job = planned(world, State())
    state = state_after(make_plan(world.inputs()))
    state = replace(
        state,
        resources={name: one for name, one in state.resources.items() if name != job.address},
        open_intents={job.address: intent_of(job)},
    )
    plan = make_plan(world.inputs(state, PlanOptions(destroy=True)))
    order = [str(one.address) for one in plan.changes]

    assert order.index("job.sft") < order.index("cluster.lab")


def test_an_interrupted_rerun_is_carried_on() -> None:
    """A killed ``run`` is resumed by the next plan although nothing has changed."""
    world = PlanScenario()
    state = ran(world)
    again = planned(world, state, PlanOptions(run=(at("job.sft"),)))
    state = replace(state, open_intents={again.address: intent_of(again)})

    change = planned(world, state)

    assert (change.action, change.reason, change.resumes) == (
        Action.REPLACE,
        ActionReason.INTERRUPTED,
        "interrupted-key",
    )


def test_an_interrupted_run_nobody_wants_any_more_gets_undone() -> None:
    """A killed ``run`` whose code has changed since is no new run, but never a no-op either."""
    world = PlanScenario()
    state = ran(world)
    again = planned(world, state, PlanOptions(run=(at("job.sft"),)))
    state = replace(state, open_intents={again.address: intent_of(again)})
    world.code = OTHER_CODE

    change = planned(world, state)

    assert (change.action, change.reason, change.resumes) == (
        Action.UPDATE,
        ActionReason.INTERRUPTED,
        None,
    )
    assert change.after == change.before


def complete_world() -> PlanScenario:
    """A world whose job has every key that this release knows."""
    world = PlanScenario()
    runtime = Runtime(start_commands=["python train.py"])
    mount = HostMount(host_path="/data", mount_location="/app/data")
    world.job |= {
        "runtime": runtime.model_dump(),
        "compute": Compute().model_dump(),
        "retry": Retry().model_dump(),
        "mounts": [mount.model_dump()],
    }
    return world


NEW_KEYS: list[tuple[str | int, ...]] = [
    ("runtime", "shm_size"),
    ("runtime", "checkpointing_config"),
    ("runtime", "cache_config", "require_cache_affinity"),
    ("runtime", "cache_config", "prepare_commands"),
    ("mounts", 0, "read_only"),
    ("retry", "delay"),
    ("compute",),
]


@pytest.mark.parametrize("path", NEW_KEYS, ids=str)
def test_a_release_that_knows_more_keys_plans_no_new_run(path: tuple[str | int, ...]) -> None:
    """What an older release recorded lacks a key whose value today is the default: a no-op that shows no change."""
    old, new = complete_world(), complete_world()
    parent: Any = old.job
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    change = planned(new, ran(old))

    assert (change.action, change.reason, change.note) == (Action.NOOP, None, "")
    assert change.after == change.before


def test_a_new_key_that_says_something_is_a_new_run() -> None:
    """Set to something else than its default it is a change, and only it is named as the cause."""
    old, new = complete_world(), complete_world()
    del old.job["runtime"]["cache_config"]["require_cache_affinity"]
    del old.job["runtime"]["shm_size"]
    new.job["runtime"]["cache_config"]["require_cache_affinity"] = False
    change = planned(new, ran(old))

    assert (change.action, change.reason) == (Action.REPLACE, ActionReason.CANNOT_UPDATE)
    assert change.replace_paths == (("runtime", "cache_config", "require_cache_affinity"),)


def test_a_key_that_this_release_does_not_know_is_no_change() -> None:
    """A newer release recorded it."""
    old, new = complete_world(), complete_world()
    old.job["runtime"]["tomorrow"] = 1
    change = planned(new, ran(old))

    assert (change.action, change.reason) == (Action.NOOP, None)
