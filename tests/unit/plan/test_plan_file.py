"""Saved plans: read as they were written, refused if damaged, stale if the state changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import EMPTY, LINEAGE, PlanScenario, at, state_after
from tests.support.sealed import OTHER_KEY, encryption_keys
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.plan.changes import change_digest, summarize_changes
from trainctl.plan.plan_file import (
    MAX_INTERRUPTIONS,
    _may_retry,
    read_plan,
    remaining,
    resumed,
    staleness,
    write_plan,
)
from trainctl.plan.planner import make_plan
from trainctl.plan.values import BatchRow, Change, Plan, PlanOptions
from trainctl.plugin_api.scheduler import BatchForecast


def a_plan(state: State = EMPTY, **options: Any) -> Plan:
    world = PlanScenario(job_lifecycle=JobLifecycle(ignore_changes=("labels.a",)))
    return make_plan(world.inputs(state, PlanOptions(**options)))


def saved_plan() -> str:
    return write_plan(a_plan(), PlanScenario().inputs().desired, "0.1.0")


def changed(text: str, **values: Any) -> str:
    return json.dumps({**json.loads(text), **values})


def changed_addresses(plan: Plan) -> list[Address]:
    return [change.address for change in plan.changes if change.action is not Action.NOOP]


def test_a_plan_is_read_as_it_was_written() -> None:
    """With a live run, errors, a chosen address and a batch system in it."""
    world = PlanScenario(mount="link")
    state = state_after(make_plan(world.inputs()), status=RunStatus.RUNNING, started_at=1.5)
    inputs = world.inputs(state, PlanOptions(run=(at("job.sft"),)))
    row = BatchRow(at("cluster.lab"), (), ((at("job.sft"), BatchForecast(start=1.5)),))
    plan = replace(make_plan(inputs), batch_systems=(row,))

    saved = read_plan(write_plan(plan, inputs.desired, "0.1.0"), "p.bin")

    assert (saved.plan, saved.desired) == (plan, inputs.desired)
    assert (saved.written_by, saved.lineage) == ("0.1.0", plan.lineage)


def test_a_saved_plan_has_its_resources_and_all_clusters() -> None:
    """A cluster may have the mirror."""
    inputs = PlanScenario().inputs(options=PlanOptions(targets=(at("weights.qwen3"),)))
    saved = read_plan(write_plan(make_plan(inputs), inputs.desired, "0.1.0"), "p.bin")
    assert list(saved.desired.resources) == [at("cluster.lab"), at("weights.qwen3")]


def test_an_encrypted_plan_needs_its_key() -> None:
    """Not even addresses are readable; a changed file is refused."""
    inputs = PlanScenario().inputs()
    plan, keys = make_plan(inputs), encryption_keys()

    text = write_plan(plan, inputs.desired, "0.1.0", keys)

    assert "job.sft" not in text
    assert read_plan(text, "p.bin", lambda: keys).plan == plan
    other = encryption_keys({"k1": OTHER_KEY})
    sealed = {**json.loads(text)["sealed"], "state": "x"}
    for document, known, code in (
        (text, None, "missing-state-key"),
        (text, other, "decryption-failed"),
        (changed(text, sealed=sealed), keys, "decryption-failed"),
    ):
        with pytest.raises(TrainctlError, match=r"p\.bin") as failure:
            read_plan(document, "p.bin", [known].pop)
        assert failure.value.code == code


@pytest.mark.parametrize(
    ("damage", "summary"),
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
def test_a_damaged_plan_is_refused(damage: Any, summary: str) -> None:
    with pytest.raises(TrainctlError) as failure:
        read_plan(damage(saved_plan()), "p.bin")
    assert failure.value.summary == summary


def test_a_plan_of_a_newer_minor_version_is_read() -> None:
    text = changed(saved_plan(), trainctl_plan={"major": 1, "minor": 7}, more="new")
    assert read_plan(text, "p.bin").plan == a_plan()


def test_a_plan_is_stale_after_a_change_of_an_address_that_it_reads() -> None:
    """The reason names the address, and values that the plan didn't see."""
    state = state_after(a_plan())
    plan = a_plan(state, run=(at("job.sft"),))
    lab = at("cluster.lab")
    record = state.resources[lab]
    other = replace(record, attributes={**record.attributes, "gpus": 8, "nodes": 2})
    elsewhere = replace(state, versions={**state.versions, at("job.other"): 4})
    moved = replace(state, versions={**state.versions, lab: 3})
    edited = replace(
        state, resources={**state.resources, lab: other}, versions={**state.versions, lab: 2}
    )
    for now, reasons in (
        (state, []),
        (elsewhere, []),
        (moved, ["cluster.lab: changed 2 times since the plan was made"]),
        (edited, ["cluster.lab: changed once since the plan was made (gpus, nodes)"]),
        (State(), ["the state that the plan was made for was deleted"]),
    ):
        assert list(staleness(plan, now)) == reasons
    assert summarize_changes(plan.changes) == ["job.sft: delete and create"]
    assert summarize_changes(()) == ["nothing"]


def test_a_plan_for_a_new_state_names_its_lineage() -> None:
    """Of two plans for a state that doesn't exist only one can create it."""
    inputs = PlanScenario().inputs()
    plan = replace(make_plan(inputs), lineage="")
    saved = [read_plan(write_plan(plan, inputs.desired, "0.1.0"), "p.bin") for _ in range(2)]
    assert [file.plan.lineage for file in saved] == ["", ""]
    assert "" != saved[0].lineage != saved[1].lineage != ""


def test_an_interrupted_apply_of_the_same_plan_is_resumed() -> None:
    """Its own changes leave it fresh; what is done is left out, also when all is done."""
    plan = a_plan()
    project = at("project.demo")
    half = State(LINEAGE, 1, versions={project: 1}, plans={project: (plan.digest, 0)})
    done = {change.address: (plan.digest, 0) for change in plan.changes}
    complete = State(LINEAGE, 4, versions=dict.fromkeys(done, 1), plans=done)
    foreign = replace(half, plans={project: ("sha256:other", 0)})

    assert list(staleness(plan, half)) == list(staleness(plan, complete)) == []
    assert changed_addresses(remaining(plan, half)) == [a for a in done if a != project]
    assert not remaining(plan, complete).has_changes
    assert [item.split(":")[0] for item in staleness(plan, foreign)] == [str(project)]


def outcomes_of(plan: Plan, *addresses: Address, error: str = "") -> Any:
    """The entries of an apply that made these changes."""
    return {
        change.address: (change_digest(change), change.after if error else None)
        for change in plan.changes
        if change.address in addresses
    }


def test_a_new_plan_is_the_rest_of_an_approved_one() -> None:
    """With the entries of the approved plan it has its digest: nothing more, nothing less."""
    plan = a_plan()
    *others, job = (change.address for change in plan.changes)
    state = state_after(replace(plan, changes=plan.changes[:-1]))
    state = replace(state, plans=dict.fromkeys(state.resources, (plan.digest, 0)))
    half, complete = a_plan(state), a_plan(state_after(plan))
    done, all_but_the_job = outcomes_of(plan, *others, job), outcomes_of(plan, *others)

    assert job.kind is Kind.JOB
    assert complete.has_changes is False
    rest = resumed(complete, plan.digest, done, EMPTY)
    assert rest is not None
    assert rest.digest == plan.digest
    assert resumed(complete, plan.digest, all_but_the_job, EMPTY) is None
    assert resumed(complete, "sha256:other", done, EMPTY) is None
    assert resumed(plan, plan.digest, done, EMPTY) is None
    rest = resumed(half, plan.digest, all_but_the_job, state)
    assert rest is not None
    assert changed_addresses(rest) == [job]
    assert resumed(half, plan.digest, all_but_the_job, replace(state, plans={})) is None


def test_a_failed_change_is_resumed_while_its_values_are_the_approved_ones() -> None:
    """A job that couldn't be deployed is replaced, not created: still the change that was approved."""
    plan = a_plan()
    *others, job = (change.address for change in plan.changes)
    failed = a_plan(state_after(plan, status=RunStatus.DEPLOY_FAILED))
    log = outcomes_of(plan, *others) | outcomes_of(plan, job, error="no node")
    (again,) = (change for change in failed.changes if change.action is not Action.NOOP)

    assert again.action is Action.REPLACE
    rest = resumed(failed, plan.digest, log, EMPTY)
    assert rest is not None
    assert [replace(change, approved_as="") for change in rest.changes] == list(failed.changes)
    approved_as = {item.approved_as for item in rest.changes if item.action is not Action.NOOP}
    assert approved_as == {change_digest(plan.changes[-1])}
    other = replace(again, after={**(again.after or {}), "priority": 9})
    changes = tuple(other if change is again else change for change in failed.changes)
    assert resumed(replace(failed, changes=changes, digest="x"), plan.digest, log, EMPTY) is None


@pytest.mark.parametrize(("validator", "is_local"), [("mtime:1:2", True), ("sha256:ab", False)])
def test_a_plan_of_files_identified_by_time_is_for_this_machine(
    validator: str, is_local: bool
) -> None:
    file = SourceFile("w.bin", 3, validator)
    world = PlanScenario(resolved=ResolvedSource("file:///data/w", "r", (file,)))
    plan = make_plan(world.inputs())
    again = make_plan(world.inputs(state_after(plan)))
    assert ("local-source" in {problem.code for problem in plan.diagnostics}) is is_local
    assert "local-source" not in {problem.code for problem in again.diagnostics}


ENDINGS = {
    "lost": (RunStatus.LOST, None),
    "interrupted": (RunStatus.LOST, "interrupted: the machine is taken back at 13:00 UTC"),
    "completed": (RunStatus.COMPLETED, None),
    "vanished": (RunStatus.RUNNING, None),
}


MOST = "interrupted " * MAX_INTERRUPTIONS


@pytest.mark.parametrize(
    ("runs", "attempts", "notices", "may_retry"),
    [
        ("vanished", 1, "imds", True),
        ("interrupted vanished", 1, "imds", True),
        (MOST + "vanished", 1, "imds", False),
        ("lost", 1, "imds", False),
        ("lost", 2, "imds", True),
        ("lost lost", 2, "imds", False),
        ("interrupted", 1, "imds", True),
        ("interrupted interrupted lost", 2, "imds", True),
        ("lost interrupted lost", 2, "imds", False),
        (MOST, 1, "imds", True),
        (MOST + "interrupted", 1, "imds", False),
        (MOST + "completed interrupted", 1, "imds", True),
        ("vanished", 1, None, False),
        ("vanished", 2, None, True),
        ("lost vanished", 2, None, False),
    ],
)
def test_interruptions_have_a_budget_of_their_own(
    runs: str, attempts: int, notices: str | None, *, may_retry: bool
) -> None:
    """Since the last run that was not lost; without notices of its platform somebody may have deleted a machine."""
    records = [
        RunRecord("a", number, "k", status=ENDINGS[name][0], error=ENDINGS[name][1]).to_json()
        for number, name in enumerate(runs.split())
    ]
    values = {"cluster": "lab", "retry": {"max_attempts": attempts, "delay": "0s"}}
    job, lost = Address.parse("job.sft"), ActionReason.RUN_LOST
    change = Change(job, Action.REPLACE, "", lost, values, values, outputs={"runs": records})
    lab = Address.parse("cluster.lab")
    node = {"name": "lab-0", "details": {"notice": {"kind": notices}} if notices else {}}
    state = State(resources={lab: RecordedResource(lab, "rented", {}, {"nodes": [node]})})
    assert _may_retry(change, state) is may_retry
