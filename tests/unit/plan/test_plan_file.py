"""Saved plans: read back as written, refused when they are something else, stale when the world moved."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.projects.plans import EMPTY, LINEAGE, PlanScenario, at, intent_of, state_after
from tests.support.sealed import OTHER_KEY, encryption_keys
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.encryption.keys import EncryptionKeys
from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.run import RunStatus
from trainctl.model.specs.resource import LifecycleSpec
from trainctl.plan.diff import change_digest, summarize_changes
from trainctl.plan.plan_file import read_plan, remaining, resumed, staleness, write_plan
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
    assert saved.lineage == plan.lineage


def test_a_saved_plan_has_the_resources_of_its_plan_only() -> None:
    """What a target leaves out is not in the file, but for clusters: one of them may keep the mirror."""
    world = PlanScenario()
    inputs = world.inputs(options=PlanOptions(targets=(at("weights.qwen3"),)))

    saved = read_plan(write_plan(make_plan(inputs), inputs.desired, "0.1.0"), "p.bin")

    assert list(saved.desired.resources) == [at("cluster.lab"), at("weights.qwen3")]


def _known(keys: EncryptionKeys | None) -> EncryptionKeys | None:
    return keys


def test_an_encrypted_plan_needs_its_key() -> None:
    """Nothing of it is readable, not even addresses; a file that was changed is refused."""
    inputs = PlanScenario().inputs()
    plan = make_plan(inputs)
    keys = encryption_keys()

    text = write_plan(plan, inputs.desired, "0.1.0", keys)

    assert "job.sft" not in text
    assert read_plan(text, "p.bin", lambda: keys).plan == plan
    other = encryption_keys({"k1": OTHER_KEY})
    for known, code in ((None, "missing-state-key"), (other, "decryption-failed")):
        with pytest.raises(TrainctlError, match=r"p\.bin") as caught:
            read_plan(text, "p.bin", partial(_known, known))
        assert caught.value.code == code
    sealed = json.loads(text)["sealed"]
    with pytest.raises(TrainctlError, match="cannot decrypt"):
        read_plan(changed(text, sealed={**sealed, "state": "x"}), "p.bin", lambda: keys)


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
        (lambda text: changed(text, lineage="other"), "p.bin is corrupt"),
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

    assert list(staleness(plan, state)) == []
    assert list(staleness(plan, elsewhere)) == []
    assert [*staleness(plan, moved)] == ["cluster.lab: changed 2 times since the plan was made"]


def test_a_deleted_state_is_stale() -> None:
    """A plan for a state that is gone would start everything again."""
    plan = a_plan(state_after(a_plan()))

    assert [*staleness(plan, State())] == ["the state that the plan was made for was deleted"]


def test_a_plan_for_a_new_state_names_its_lineage() -> None:
    """Two plans for a state that doesn't exist are for two states, of which only one can be created."""
    inputs = PlanScenario().inputs()
    plan = replace(make_plan(inputs), lineage="")
    saved = [read_plan(write_plan(plan, inputs.desired, "0.1.0"), "p.bin") for _ in range(2)]

    assert [one.plan.lineage for one in saved] == ["", ""]
    assert "" != saved[0].lineage != saved[1].lineage != ""


def test_an_interrupted_apply_of_the_same_plan_carries_on() -> None:
    """Moves made under the plan itself leave it fresh; what is done is skipped, also when all is done."""
    plan = a_plan()
    project = at("project.demo")
    half = State(LINEAGE, 1, versions={project: 1}, plans={project: (plan.digest, 0)})
    done = {change.address: (plan.digest, 0) for change in plan.changes}
    whole = State(LINEAGE, 4, versions=dict.fromkeys(done, 1), plans=done)
    foreign = replace(half, plans={project: ("sha256:other", 0)})

    assert list(staleness(plan, half)) == list(staleness(plan, whole)) == []
    left = [one.address for one in remaining(plan, half).changes if one.action is not Action.NOOP]
    assert left == [one.address for one in plan.changes if one.address != project]
    assert not remaining(plan, whole).has_changes
    assert [one.split(":")[0] for one in staleness(plan, foreign)] == [str(project)]


def outcomes_of(plan: Plan, *addresses: str, error: str = "") -> Any:
    """What the log has of an apply that made these changes."""
    made = [change for change in plan.changes if str(change.address) in addresses]
    return {
        change.address: (
            replace(
                intent_of(change),
                action=change.action.name.lower(),
                inputs={"attributes": change.after, "digest": change_digest(change)},
            ),
            error,
        )
        for change in made
    }


def test_a_new_plan_is_the_rest_of_an_approved_one() -> None:
    """With what the log has of the approved plan it gives its digest: nothing more, nothing less, nothing else."""
    plan = a_plan()
    addresses = [str(change.address) for change in plan.changes]
    job = addresses[-1]
    half_done = state_after(replace(plan, changes=plan.changes[:-1]))
    half_done = replace(half_done, plans=dict.fromkeys(half_done.resources, (plan.digest, 0)))
    half = a_plan(half_done)
    whole = a_plan(state_after(plan))
    done = outcomes_of(plan, *addresses)
    all_but_the_job = outcomes_of(plan, *addresses[:-1])

    assert job.startswith("job.")
    assert whole.has_changes is False
    rest = resumed(whole, plan.digest, done, EMPTY)
    assert rest is not None
    assert rest.digest == plan.digest
    assert resumed(whole, plan.digest, all_but_the_job, EMPTY) is None
    assert resumed(whole, "sha256:other", done, EMPTY) is None
    assert resumed(plan, plan.digest, done, EMPTY) is None
    left = resumed(half, plan.digest, all_but_the_job, half_done)
    assert left is not None
    assert resumed(half, plan.digest, all_but_the_job, replace(half_done, plans={})) is None
    assert [one.address for one in left.changes if one.action is not Action.NOOP] == [at(job)]


def test_a_failed_change_is_left_while_its_values_are_the_approved_ones() -> None:
    """The job that could not be deployed is replaced, not created: still the change that was approved."""
    plan = a_plan()
    addresses = [str(change.address) for change in plan.changes]
    failed = a_plan(state_after(plan, status=RunStatus.DEPLOY_FAILED))
    log = outcomes_of(plan, *addresses[:-1]) | outcomes_of(plan, addresses[-1], error="no node")
    (again,) = (one for one in failed.changes if one.action is not Action.NOOP)

    assert again.action is Action.REPLACE
    rest = resumed(failed, plan.digest, log, EMPTY)
    assert rest is not None
    assert [replace(one, approved_as="") for one in rest.changes] == list(failed.changes)
    approved_as = {one.approved_as for one in rest.changes if one.action is not Action.NOOP}
    assert approved_as == {change_digest(plan.changes[-1])}
    other = replace(again, after={**(again.after or {}), "priority": 9})
    changes = tuple(other if one is again else one for one in failed.changes)
    assert resumed(replace(failed, changes=changes, digest="x"), plan.digest, log, EMPTY) is None


def test_what_moved_is_named_by_its_paths() -> None:
    """A stale plan says which values of an address it didn't see, and a new plan what it does."""
    state = state_after(a_plan())
    plan = a_plan(state, run=(at("job.sft"),))
    lab = at("cluster.lab")
    recorded = state.resources[lab]
    other = replace(recorded, attributes={**recorded.attributes, "gpus": 8, "nodes": 2})
    moved = replace(
        state, resources={**state.resources, lab: other}, versions={**state.versions, lab: 2}
    )

    assert [*staleness(plan, moved)] == [
        "cluster.lab: changed once since the plan was made (gpus, nodes)"
    ]
    assert summarize_changes(plan.changes) == ["job.sft: delete and create"]
    assert summarize_changes(()) == ["nothing"]


@pytest.mark.parametrize(("validator", "said"), [("mtime:1:2", True), ("sha256:ab", False)])
def test_files_identified_by_time_are_for_this_machine(validator: str, said: bool) -> None:
    """The plan warns once, and not if it changes nothing."""
    file = SourceFile("w.bin", 3, validator)
    world = PlanScenario(resolved=ResolvedSource("file:///data/w", "r", (file,)))
    plan = make_plan(world.inputs())
    done = make_plan(world.inputs(state_after(plan)))

    assert ("local-source" in {one.code for one in plan.diagnostics}) is said
    assert "local-source" not in {one.code for one in done.diagnostics}
