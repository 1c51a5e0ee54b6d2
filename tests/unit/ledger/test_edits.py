"""Changes of the state by hand: rename, remove, push, and move it to another place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import begin, ledger_on
from tests.support.storage.ledgers import record as sample_record
from tests.support.storage.log_faults import FaultyLog, FaultyStore, StoreFault, StoreFaults
from trainctl.errors import LockHeld, StateError, StateMoved, UsageError
from trainctl.ledger import edits
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.edits import abort_migration, migrate
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.planned_edits import StateEdits, plan_edits
from trainctl.ledger.renaming import renames
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog
from trainctl_state import BucketLog, directory_objects, open_directory
from trainctl_state.log import ObjectLog

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
        IntentRequest(item.address, "create", "local", str(item.address), {}, plan="p1")
        for item in RECORDS
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
    (job,) = [resource for resource in raw["resources"] if resource["address"] == "job.next"]
    job["attributes"] = {"edited": True}
    raw["resources"] = [row for row in raw["resources"] if row["address"] != "cache.p-c"]
    state = edits.push(ledger, raw)
    assert state.resources[NEXT].attributes == {"edited": True}
    assert all(state.moved(value, 1, "p1") for value in (NEXT, CACHE, JOB))
    assert state == ledger_on(log).state()
    assert ledger.history()[-1].action == "push"
    empty = ledger_on(MemoryLog())
    again = edits.push(empty, state_to_json(state))
    assert (again.lineage, again.serial) == (state.lineage, state.serial)
    assert {**again.resources}.keys() == {**state.resources}.keys()
    begin(empty, JOB, "k9")
    restored = edits.push(ledger_on(MemoryLog()), state_to_json(empty.state()))
    assert [intent.key for intent in restored.orphaned_intents[JOB]] == ["k9"]


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
    assert [item.address for item in plan_edits(faulty.entries(), "p2").imports] == [A("job.new")]


URL = "memory:new"


def used(ledger: Ledger) -> Ledger:
    """A ledger with a resource and a comment."""
    ledger.finish(begin(ledger), sample_record(outputs={"o": 1}, key="k1"))
    ledger.note("kept")
    return ledger


def test_everything_is_at_the_new_place_and_the_old_one_says_where() -> None:
    """State, history and lineage are the same; nothing is read from or written to the old place, whoever tries."""
    log = MemoryLog()
    old, new = used(ledger_on(log)), ledger_on(MemoryLog(URL))
    before, history = old.state(), old.history()
    assert migrate(old, new) == 4

    assert new.state() == replace(before, position=1)
    assert new.history() == history
    for attempt in (
        old.state,
        old.history,
        old.entries,
        lambda: old.note("late"),
        lambda: begin(ledger_on(log)),
    ):
        with pytest.raises(StateMoved, match=URL) as caught:
            attempt()
        assert f"state: {{url: {URL}}}" in caught.value.detail
    new.note("goes on")
    assert migrate(old, new) == 4  # as from a script that runs again
    with pytest.raises(StateError, match="changed since the move"):
        abort_migration(old, lambda _: new)
    with pytest.raises(StateMoved, match=URL):
        migrate(old, ledger_on(MemoryLog("memory:third")))


def test_a_state_that_is_being_changed_does_not_move() -> None:
    """An open lease, an empty place, the same place and one with another state are refused; the old place stays usable."""
    old = used(ledger_on(MemoryLog()))
    begin(old, key="k2")
    new = ledger_on(MemoryLog(URL))
    with pytest.raises(LockHeld, match=r"job\.sft is locked by"):
        migrate(old, new)
    old.release(next(iter(old.state().open_intents.values())).id)
    with pytest.raises(UsageError, match="no state"):
        migrate(ledger_on(MemoryLog("memory:empty")), new)
    with pytest.raises(UsageError, match="already"):
        migrate(old, old)
    with pytest.raises(StateError, match="another state"):
        migrate(old, used(ledger_on(MemoryLog(URL))))
    old.note("usable")
    assert migrate(old, new) > 0


def test_an_aborted_move() -> None:
    """The old place is used again and can move elsewhere; the copy refuses everything, also as a destination."""
    old, new = used(ledger_on(MemoryLog())), ledger_on(MemoryLog(URL))
    with pytest.raises(UsageError, match="not moved"):
        abort_migration(old, lambda _: new)
    migrate(old, new)
    assert abort_migration(old, lambda _: new) == URL
    old.note("again")
    with pytest.raises(StateMoved, match=old.url):
        new.note("not here")
    with pytest.raises(StateError, match="another state"):
        migrate(old, new)
    elsewhere = ledger_on(MemoryLog("memory:third"))
    migrate(old, elsewhere)
    assert elsewhere.state() == replace(old.state(even_moved=True), position=1, moved_to="")


def repeated(command: Callable[[], object]) -> int:
    """Run a command until it succeeds, at most three times; return how often it failed."""
    for failures in range(3):
        try:
            command()
        except StateError:
            continue
        return failures
    return 3


def _opened(place: Path, faults: StoreFaults) -> Ledger:
    log = BucketLog if place.name == "bucket" else ObjectLog
    return ledger_on(log(FaultyStore(directory_objects(place), faults), place.as_uri()))


def _move(places: list[Path], faults: StoreFaults) -> None:
    migrate(*(_opened(place, faults) for place in places))


def _abort(places: list[Path], faults: StoreFaults) -> None:
    abort_migration(_opened(places[0], faults), lambda _: _opened(places[1], faults))


@pytest.mark.parametrize("fault", [StoreFault.FAIL, StoreFault.LOSE])
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_interrupted_at_every_write(
    tmp_path: Path, fault: StoreFault, abort: bool, kind: str
) -> None:
    """After any write that fails, or is done and not answered, the same command again ends right, with nothing lost."""
    for at in range(1, 20):
        places = [tmp_path / str(at) / name for name in ("old", kind)]
        used(ledger_on(open_directory(places[0].as_uri())))
        faults = StoreFaults({at: fault})

        before = _opened(places[0], faults).state()
        failures = repeated(partial(_move, places, faults))
        if abort:
            failures += repeated(partial(_abort, places, faults))
        ends = [ledger_on(open_directory(place.as_uri())) for place in places]
        live, left = ends if abort else reversed(ends)
        assert live.state().resources == before.resources
        assert (live.state().lineage, live.state().serial) == (before.lineage, before.serial)
        with pytest.raises(StateMoved):
            left.state()
        if not failures and faults.calls < at:
            assert at > 2, "this many writes there are at least"
            return
    pytest.fail("there are more writes than were tried")
