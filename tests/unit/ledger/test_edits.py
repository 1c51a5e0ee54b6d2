"""Changes by hand: renamed, removed and pushed resources; each is one entry, and refused if it is wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import begin, ledger_on
from tests.support.storage.log_faults import FaultyLog, StoreFault, StoreFaults
from trainctl.errors import LockHeld, StateError, UsageError
from trainctl.ledger import edits
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.planned_edits import StateEdits, plan_edits
from trainctl.ledger.renaming import renames
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog

A = Address.parse
PROJECT, CLUSTER, WEIGHTS, CACHE, JOB, NEXT = map(
    A, ("project.p", "cluster.c", "weights.sft-0", "cache.p-c", "job.sft", "job.next")
)


def record(address: Address, *needed: Address, **attributes: Any) -> RecordedResource:
    return RecordedResource(address, "local", attributes, {}, needed)


RECORDS = (
    record(PROJECT, name="p"),
    record(CLUSTER),
    record(WEIGHTS, source="hf://a/b"),
    record(CACHE, CLUSTER, project="p", cluster="c"),
    record(
        JOB,
        PROJECT,
        CLUSTER,
        WEIGHTS,
        CACHE,
        project="p",
        cluster="c",
        weights=[{"address": "weights.sft-0", "mount_location": "weights/b"}],
        weight_pins={"weights.sft-0": "sha256:1"},
        runtime={"start_commands": ["job.sft"], "environment_variables": {"X": "job.sft"}},
    ),
    record(
        NEXT,
        JOB,
        project="p",
        depends_on=["job.sft"],
        runtime={"load_checkpoint_config": {"checkpoints": [{"project": "p", "job": "job.sft"}]}},
    ),
)


def filled(log: StateLog | None = None) -> Ledger:
    """A ledger with a small project."""
    ledger = ledger_on(log or MemoryLog())
    requests = [
        IntentRequest(one.address, "create", "local", str(one.address), {}, plan="p1")
        for one in RECORDS
    ]
    ledger.record(list(zip(requests, RECORDS, strict=True)))
    return ledger


def test_a_renamed_job_keeps_what_it_is_and_all_follow() -> None:
    """Its own weights are renamed with it; whoever refers to it has the new name; commands and variables are left; one entry."""
    log = MemoryLog()
    ledger = filled(log)
    names = renames(ledger.state(), [(JOB, A("job.tune"))])
    assert names == {WEIGHTS: A("weights.tune-0"), JOB: A("job.tune")}
    before = ledger.state()
    edits.edit(ledger, StateEdits(names))
    state = ledger.state()

    assert (state.serial, state.position) == (before.serial + 1, before.position + 1)
    assert JOB not in state.resources
    job, following = state.resources[A("job.tune")], state.resources[NEXT]
    assert job.outputs == {"origin": "job.sft"}
    assert job.depends_on == (PROJECT, CLUSTER, A("weights.tune-0"), CACHE)
    assert job.attributes["weights"][0]["address"] == "weights.tune-0"
    assert job.attributes["weight_pins"] == {"weights.tune-0": "sha256:1"}
    assert job.attributes["runtime"] == RECORDS[4].attributes["runtime"]
    assert following.depends_on == (A("job.tune"),)
    assert following.attributes["depends_on"] == ["job.tune"]
    (load,) = following.attributes["runtime"]["load_checkpoint_config"]["checkpoints"]
    assert load == {"project": "p", "job": "job.tune"}
    assert state.moved(JOB, 1, "p1")
    assert job.version == 2
    edits.edit(ledger, StateEdits(names))  # again: nothing to do
    assert ledger.state() == state
    assert ledger_on(log).state() == state
    rows = [(row.address, row.action, row.reason) for row in ledger.history(A("job.tune"))]
    assert rows == [("job.sft", "create", None), ("job.tune", "move", "from job.sft")]


def test_a_renamed_project_and_its_cache() -> None:
    """Jobs and caches are in the new project; a default cache has its name; the first name stays known through a second move."""
    ledger = filled()
    for old, new in (("p", "q"), ("q", "r")):
        pair = (A(f"project.{old}"), A(f"project.{new}"))
        edits.edit(ledger, StateEdits(renames(ledger.state(), [pair])))
    state = ledger.state()
    project, cache = state.resources[A("project.r")], state.resources[A("cache.r-c")]
    assert (project.attributes["name"], project.outputs["origin"]) == ("r", "project.p")
    assert (cache.attributes["project"], cache.outputs["origin"]) == ("r", "cache.p-c")
    assert state.resources[JOB].attributes["project"] == "r"
    assert "origin" not in state.resources[JOB].outputs


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (JOB, CACHE, "can't be renamed"),
        (CLUSTER, A("cluster.d"), "can't be renamed"),
        (JOB, NEXT, "in the state, too"),
    ],
)
def test_names_that_are_refused(old: Address, new: Address, why: str) -> None:
    with pytest.raises((UsageError, StateError), match=why):
        renames(filled().state(), [(old, new)])


def test_what_is_being_changed_is_left_alone() -> None:
    """A lease on the old or the new name refuses all; the attempts of the past are renamed, too."""
    ledger = filled()
    ledger.fail(begin(ledger, JOB, "k1"), "no")
    edits.edit(ledger, StateEdits({JOB: A("job.tune")}))
    (orphan,) = ledger.state().orphaned_intents[A("job.tune")]
    assert (orphan.address, orphan.key) == (A("job.tune"), "k1")
    begin(ledger, JOB, "k2")
    with pytest.raises(LockHeld):
        edits.edit(ledger, StateEdits({A("job.tune"): JOB}))
    with pytest.raises(LockHeld):
        edits.push(ledger, {**state_to_json(ledger.state()), "serial": 99})
    with pytest.raises(LockHeld):
        edits.remove(ledger, [JOB])


def test_removed_resources() -> None:
    """Not what others need; a job's runs stay visible; nothing with a dry run; several at once are one append."""
    ledger = filled()
    with pytest.raises(UsageError, match=r"job\.next needs job\.sft"):
        edits.remove(ledger, [JOB])
    with pytest.raises(UsageError, match="not in the state"):
        edits.remove(ledger, [A("job.other")])
    before = ledger.state()
    edits.remove(ledger, [JOB, NEXT], dry_run=True)
    assert ledger.state() == before
    edits.remove(ledger, [JOB, NEXT])
    state = ledger.state()
    assert set(state.resources) == {PROJECT, CLUSTER, WEIGHTS, CACHE}
    assert set(state.forgotten) == {JOB, NEXT}
    assert (state.position, state.serial) == (before.position + 1, before.serial + 2)
    assert [row.status for row in ledger.history(JOB)] == ["done", "removed"]
    edits.remove(ledger, [CACHE, WEIGHTS])
    assert set(ledger.state().forgotten) == {JOB, NEXT}


def test_a_pushed_state() -> None:
    """All counts as changed; history and later changes go on; an empty place takes it whole; what was being changed counts as failed."""
    log = MemoryLog()
    ledger = filled(log)
    raw = state_to_json(ledger.state())
    assert edits.push(ledger, raw) == ledger.state()
    raw["serial"] += 1
    (job,) = [one for one in raw["resources"] if one["address"] == "job.next"]
    job["attributes"] = {"edited": True}
    raw["resources"] = [one for one in raw["resources"] if one["address"] != "cache.p-c"]
    state = edits.push(ledger, raw)
    assert state.resources[NEXT].attributes == {"edited": True}
    assert all(state.moved(one, 1, "p1") for one in (NEXT, CACHE, JOB))
    assert state == ledger_on(log).state()
    assert ledger.history()[-1].action == "push"
    empty = ledger_on(MemoryLog())
    again = edits.push(empty, state_to_json(state))
    assert (again.lineage, again.serial) == (state.lineage, state.serial)
    assert {**again.resources}.keys() == {**state.resources}.keys()
    begin(empty, JOB, "k9")
    restored = edits.push(ledger_on(MemoryLog()), state_to_json(empty.state()))
    assert [one.key for one in restored.orphaned_intents[JOB]] == ["k9"]


def test_states_that_are_not_pushed() -> None:
    """Of another lineage, older, or another one with the same serial: refused with both numbers, nothing is changed."""
    ledger = filled()
    raw = state_to_json(ledger.state())
    for change, why in (
        ({"lineage": "other"}, "its lineage is other"),
        ({"serial": 1}, "1 is not newer than 6"),
        ({"resources": []}, "6 is not newer than 6"),
    ):
        with pytest.raises(StateError, match=why):
            edits.push(ledger, {**raw, **change})
    assert state_to_json(ledger.state()) == raw


@pytest.mark.parametrize("fault", [StoreFault.FAIL, StoreFault.LOSE])
def test_an_interrupted_edit(fault: StoreFault) -> None:
    """A rename and an import are one append: nothing or both are there, and the same again completes it."""
    log = MemoryLog()
    state = filled(log).state()
    imported = replace(record(A("job.new")), outputs={"runs": [{"id": "abcdefg"}]})
    edits_of_plan = StateEdits({JOB: A("job.tune"), PROJECT: A("project.q")}, (imported,))
    faulty = ledger_on(FaultyLog(log, StoreFaults({1: fault})))
    with suppress(StateError):
        edits.edit(faulty, edits_of_plan, "p2")
    after = ledger_on(log).state()
    assert after.resources in (state.resources, edits_of_plan.applied_to(state).resources)
    edits.edit(faulty, edits_of_plan, "p2")
    assert ledger_on(log).state().resources == edits_of_plan.applied_to(state).resources
    assert plan_edits(faulty.entries(), "p2").renames == edits_of_plan.renames
    assert [one.address for one in plan_edits(faulty.entries(), "p2").imports] == [A("job.new")]
