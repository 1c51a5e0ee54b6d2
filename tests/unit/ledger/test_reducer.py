"""What each entry does to a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.storage.ledgers import PREP, SFT, elsewhere, record
from trainctl.ledger.entries import (
    ApprovalEntry,
    Entry,
    EntryHeader,
    FailureEntry,
    LeaseRenewedEntry,
    OutcomeEntry,
    RefreshEntry,
    UnlockEntry,
)
from trainctl.ledger.reducer import StateReducer, merge_outputs, reduce_entries
from trainctl.ledger.state import Intent, State
from trainctl.model.address import Address


def header(number: int = 0) -> EntryHeader:
    return EntryHeader(f"e{number}", 100.0 + number, "me@here")


def intent(name: str = "i1", key: str = "k1", plan: str = "p") -> Intent:
    return Intent(name, SFT, "create", "local", key, {}, elsewhere(), 1.0, plan=plan)


def outcome(name: str = "i1", plan: str = "p", gone: bool = False) -> OutcomeEntry:
    return OutcomeEntry(header(), name, SFT, None if gone else record(), "create", plan)


def after(*entries: Entry) -> State:
    return reduce_entries(State(), entries)


def test_an_intent_is_open_until_its_outcome() -> None:
    state = after(intent())
    assert state.open_intents[SFT].id == "i1"
    assert state.serial == 0
    state = after(intent(), outcome())
    assert SFT not in state.open_intents
    assert state.resources[SFT] == record(version=1)
    assert (state.serial, state.versions[SFT]) == (1, 1)


def test_a_state_stays_as_it_was_taken() -> None:
    reducer = StateReducer(after(intent()))
    taken = reducer.state()
    reducer.move_to(5)
    reducer.apply(outcome())
    assert SFT in taken.open_intents
    assert taken.resources == {}
    assert reducer.state() == replace(after(intent(), outcome()), position=5)


def test_a_removal_leaves_its_count() -> None:
    state = after(intent(), outcome(), intent("i2"), outcome("i2", gone=True))
    assert SFT not in state.resources
    assert (state.serial, state.versions[SFT]) == (2, 2)
    state = reduce_entries(state, [intent("i3"), outcome("i3")])
    assert state.resources[SFT].version == 3


TAKEN_OVER = (intent("i1"), intent("i2", key="k2"))


@pytest.mark.parametrize(
    ("before", "stray"),
    [
        (TAKEN_OVER, outcome("i1")),
        (TAKEN_OVER, FailureEntry(header(), "i1", SFT, "x")),
        (TAKEN_OVER, UnlockEntry(header(), "i1", SFT)),
        (TAKEN_OVER, LeaseRenewedEntry(header(), ("i1",))),
        ([intent()], replace(outcome(), address=PREP)),
        ([intent()], intent()),
        ([intent()], replace(intent(), address=PREP)),
    ],
)
def test_an_entry_without_the_lease_changes_nothing(before: list[Entry], stray: Entry) -> None:
    """That names an intent that was taken over or is of another address, or an intent that is open already."""
    state = after(*before)
    assert reduce_entries(state, [stray]) == state


def test_a_change_by_hand_needs_no_intent() -> None:
    state = after(intent(), outcome("", plan=""))
    assert state.resources[SFT].version == 1
    assert SFT in state.open_intents


def test_a_failure_keeps_the_key() -> None:
    state = after(
        intent(), outcome(), intent("i2", key="k2"), FailureEntry(header(), "i2", SFT, "no")
    )
    assert SFT not in state.open_intents
    assert state.resources[SFT].version == 1
    assert state.serial == 1
    assert [intent.key for intent in state.orphaned_intents[SFT]] == ["k2"]
    state = reduce_entries(state, [intent("i3", key="k3"), FailureEntry(header(), "i3", SFT, "no")])
    assert [intent.key for intent in state.orphaned_intents[SFT]] == ["k2", "k3"]
    state = reduce_entries(state, [intent("i4", key="k3")])
    assert [intent.key for intent in state.orphaned_intents[SFT]] == ["k2"]
    assert SFT not in reduce_entries(state, [outcome("i4")]).orphaned_intents


def test_what_was_put_off_leaves_no_key() -> None:
    state = after(intent(), FailureEntry(header(), "i1", SFT, "no room", waits=True))
    assert SFT not in state.open_intents
    assert SFT not in state.orphaned_intents


def test_what_was_approved_stays_so_until_something_came_of_it() -> None:
    """A failure leaves it, a later approval takes its place, an outcome ends it."""
    state = after(
        ApprovalEntry(header(), "p1", {SFT: "d1"}),
        intent(),
        FailureEntry(header(), "i1", SFT, "no"),
    )
    assert state.approved == {SFT: ("d1", "p1")}
    state = reduce_entries(state, [ApprovalEntry(header(), "p2", {SFT: "d2"})])
    assert state.approved == {SFT: ("d2", "p2")}
    assert reduce_entries(state, [intent("i2", key="k2"), outcome("i2")]).approved == {}


def test_a_takeover_keeps_the_other_key() -> None:
    assert after(intent("i1"), intent("i2", key="k2")).orphaned_intents[SFT][0].key == "k1"
    assert SFT not in after(intent("i1"), intent("i2")).orphaned_intents


def test_a_release_counts() -> None:
    """Ended by hand: serial and version move, the record says the same version, and the intent is kept as released."""
    state = after(intent(), outcome(), intent("i2"), UnlockEntry(header(), "i2", SFT))
    assert (state.serial, state.versions[SFT], state.resources[SFT].version) == (2, 2, 2)
    assert state.orphaned_intents[SFT][0].released


def test_observed_merges_without_counting() -> None:
    state = after(
        intent(),
        outcome(),
        RefreshEntry(header(), SFT, {"a": 1}),
        RefreshEntry(header(), SFT, {"b": 2}),
    )
    assert state.resources[SFT].outputs == {"a": 1, "b": 2}
    assert (state.serial, state.versions[SFT]) == (1, 1)


def test_moves_of_the_same_plan_do_not_make_it_stale() -> None:
    """What a plan saw stays true through its own outcomes, and ends with anyone else's, by hand too."""
    state = after(
        intent(plan="p"), outcome(plan="p"), intent("i2", plan="p"), outcome("i2", plan="p")
    )
    assert not state.moved(SFT, 0, "p")
    assert state.moved(SFT, 0, "q")
    assert state.moved(SFT, 0)
    assert not state.moved(SFT, 2, "q")
    assert reduce_entries(state, [intent("i3", plan="q"), outcome("i3", plan="q")]).moved(
        SFT, 0, "p"
    )
    released = reduce_entries(state, [intent("i3", plan="p"), UnlockEntry(header(), "i3", SFT)])
    assert released.moved(SFT, 0, "p")
    assert reduce_entries(released, [outcome("", plan="")]).moved(SFT, 2, "")


def test_a_state_handed_out_never_changes() -> None:
    builder = StateReducer()
    builder.apply(intent())
    before = builder.state()
    builder.apply(outcome())
    assert SFT in before.open_intents
    assert SFT not in before.resources
    assert builder.state() is builder.state()
    with pytest.raises(TypeError):
        before.resources[SFT] = record()  # type: ignore[index]


LAB = Address.parse("cluster.lab")


def removal(address: Address, action: str, name: str = "") -> OutcomeEntry:
    """By hand, unless an intent is named."""
    return OutcomeEntry(header(), name, address, None, action)


def entry(address: Address, *runs: str, on: Address = LAB) -> OutcomeEntry:
    """Recorded by hand, with runs."""
    outputs = {"runs": [{"id": run, "ended_at": 1.0} for run in runs]}
    return OutcomeEntry(header(), "", address, record(address, outputs, depends_on=(on,)), "create")


def test_what_was_forgotten_is_remembered() -> None:
    """As it was, and as it is seen from then on, until something is recorded there again or it is destroyed."""
    state = after(entry(SFT, "r"), removal(SFT, "forget"))
    assert SFT not in state.resources
    assert (
        state.forgotten[SFT]
        == state.find_record(SFT)
        == record(SFT, {"runs": [{"id": "r", "ended_at": 1.0}]}, depends_on=(LAB,))
    )
    seen = reduce_entries(
        state, [RefreshEntry(header(), SFT, {"run": {"id": "r", "ended_at": 1.0, "sync": "done"}})]
    )
    assert seen.forgotten[SFT].outputs["runs"][0]["sync"] == "done"
    assert reduce_entries(seen, [removal(SFT, "forget")]) == replace(
        seen, serial=3, versions={SFT: 3}, plans={SFT: ("", 2)}
    )
    again = reduce_entries(seen, [entry(SFT, "r", "s")])
    assert again.find_record(SFT) == again.resources[SFT]
    assert not again.forgotten
    assert not reduce_entries(state, [removal(SFT, "delete")]).forgotten
    assert not after(entry(SFT, "r"), removal(SFT, "delete")).forgotten


def test_what_was_forgotten_goes_with_its_cluster() -> None:
    """With that of another it stays."""
    state = after(
        entry(SFT, "r"), entry(PREP, "s", on=PREP), removal(SFT, "forget"), removal(PREP, "forget")
    )
    assert set(reduce_entries(state, [removal(LAB, "delete")]).forgotten) == {PREP}


def run(name: str, status: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"id": name, "status": status, "generation": 1, "ended_at": None, **more}


def test_a_run_goes_in_by_its_id() -> None:
    """One observer's run doesn't overwrite another's, whether it comes alone or in a list."""
    outputs = {"runs": [run("a"), run("b")]}
    merged = merge_outputs(outputs, {"run": run("a", "COMPLETED", ended_at=5.0)})
    assert [(run["id"], run["status"]) for run in merged["runs"]] == [
        ("a", "COMPLETED"),
        ("b", "RUNNING"),
    ]
    merged = merge_outputs(outputs, {"runs": [run("c")]})
    assert [run["id"] for run in merged["runs"]] == ["a", "b", "c"]


def test_an_end_is_final() -> None:
    """A look made before the end that arrives after it changes nothing; a later generation does."""
    outputs = {"runs": [run("a", "COMPLETED", ended_at=5.0)]}
    assert merge_outputs(outputs, {"run": run("a")}) is outputs
    assert merge_outputs(outputs, {"run": run("a", generation=0)}) is outputs
    later = merge_outputs(outputs, {"run": run("a", generation=2)})
    assert later["runs"][0]["status"] == "RUNNING"


def test_nothing_new_is_the_same_object() -> None:
    outputs = {"runs": [run("a")], "x": 1}
    assert merge_outputs(outputs, {"x": 1, "run": run("a")}) is outputs
    assert merge_outputs(outputs, {}) is outputs


def test_that_an_end_was_wanted_is_kept() -> None:
    """Who looked before that was said, and tells it afterwards, doesn't take it back; a later attempt is another."""
    outputs = {"runs": [run("a", stop_requested=True)]}
    seen = merge_outputs(outputs, {"run": run("a", "LOST")})["runs"][0]
    assert (seen["status"], seen["stop_requested"]) == ("LOST", True)
    again = merge_outputs(outputs, {"run": run("a", generation=2)})["runs"][0]
    assert "stop_requested" not in again
