"""The fold, for any sequence of entries."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.storage.ledgers import elsewhere
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.entries import (
    CommentEntry,
    CreatedEntry,
    Entry,
    EntryHeader,
    FailureEntry,
    LeaseRenewedEntry,
    OutcomeEntry,
    RefreshEntry,
    UnlockEntry,
    from_json,
    to_json,
)
from trainctl.ledger.reducer import StateReducer, reduce_entries
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.specs.checks import JobLifecycle

addresses = st.builds(
    Address,
    st.sampled_from([Kind.JOB, Kind.CLUSTER]),
    st.sampled_from("ab"),
    st.sampled_from([None, 'k="1"\n']),
)
ids = st.sampled_from(["i1", "i2", "i3", "i4"])
keys = st.sampled_from(["k1", "k2", "k3"])
plans = st.sampled_from(["", "p", "q"])
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
attributes = st.dictionaries(st.text(max_size=4), json_values, max_size=3)
stamps = st.builds(EntryHeader, st.uuids().map(str), st.floats(0, 2e9), st.text(max_size=5))
runs = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("rs"), "ended_at": st.sampled_from([None, 1.0])}),
    max_size=2,
)
outputs = attributes.filter(lambda value: not {"run", "runs"} & set(value)) | st.fixed_dictionaries(
    {"runs": runs}
)
lifecycles = st.builds(JobLifecycle, st.booleans(), st.just(("x",)), st.just(("config", "code")))
records = st.builds(
    RecordedResource,
    addresses,
    st.just("local"),
    attributes,
    outputs,
    st.lists(addresses, max_size=2).map(tuple),
    lifecycles,
    st.just(1),
    keys,
)


@st.composite
def outcomes(draw: st.DrawFn) -> OutcomeEntry:
    address = draw(addresses)
    recorded = draw(st.none() | records)
    return OutcomeEntry(
        draw(stamps),
        draw(ids | st.just("")),
        address,
        recorded and replace(recorded, address=address),
        draw(st.sampled_from(["create", "forget"])),
        draw(plans),
        draw(st.text(max_size=3)),
    )


entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        Intent, ids, addresses, st.sampled_from(["create", "delete"]), st.just("local"), keys, attributes,
        st.just(elsewhere()), st.floats(0, 2e9), st.just(30.0), plans, reason=st.text(max_size=3),
    ),
    outcomes(),
    st.builds(FailureEntry, stamps, ids, addresses, st.text(max_size=5)),
    st.builds(UnlockEntry, stamps, ids, addresses),
    st.builds(LeaseRenewedEntry, stamps, st.lists(ids, max_size=3).map(tuple)),
    st.builds(RefreshEntry, stamps, addresses, outputs),
    st.builds(CommentEntry, stamps, st.text(max_size=5), st.none() | addresses),
    st.builds(CreatedEntry, stamps, st.sampled_from(["l1", "l2"])),
)  # fmt: skip
logs = st.lists(entries, max_size=30)


@given(entries)
def test_an_entry_survives_its_json(entry: Entry) -> None:
    assert from_json(json.loads(json.dumps(to_json(entry)))) == entry


@given(logs, st.integers(0, 30))
def test_a_snapshot_anywhere_changes_nothing(log: list[Entry], cut: int) -> None:
    whole = reduce_entries(State(), log)
    half = reduce_entries(State(), log[:cut])
    through = state_from_json(json.loads(json.dumps(state_to_json(half))))
    assert through == half
    assert reduce_entries(through, log[cut:]) == whole == reduce_entries(State(), log)
    step = State()
    for entry in log:
        step = reduce_entries(step, [entry])
    assert step == whole


@given(logs)
def test_invariants_of_the_state(log: list[Entry]) -> None:
    """No key of an effect is forgotten early, and no open intent is also an orphaned one."""
    builder, owed = StateReducer(), dict[Address, set[str]]()
    for entry in log:
        before = builder.state()
        changed = builder.apply(entry)
        state = builder.state()
        assert changed or state == before
        assert state.serial == sum(state.versions.values())
        for address, recorded in state.resources.items():
            assert recorded.version == state.versions[address]
            assert recorded.address == address
        assert not state.forgotten.keys() & state.resources.keys()
        if isinstance(entry, Intent) and changed:
            owed.setdefault(entry.address, set()).add(entry.key)
        if isinstance(entry, OutcomeEntry) and changed:
            owed[entry.address] = set()
            if entry.address in state.open_intents:
                owed[entry.address] = {state.open_intents[entry.address].key}
        for address, keys_owed in owed.items():
            known = {item.key for item in state.orphaned_intents.get(address, ())}
            if address in state.open_intents:
                key = state.open_intents[address].key
                assert key not in known
                known.add(key)
            assert known == keys_owed
