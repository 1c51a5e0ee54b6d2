"""What was written once is read for ever: entries, states and a whole directory of format version 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainctl.errors import StateError
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.entries import from_json, to_json
from trainctl.ledger.history import state_at
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.reducer import StateReducer
from trainctl_state import open_directory

GOLDEN = Path(__file__).parents[2] / "golden" / "state"


def load(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def test_entries_are_read_and_written_alike() -> None:
    entries = load("entries.v1.json")
    assert {raw["type"] for raw in entries} == {
        "created", "intent", "lease_renewed", "outcome", "failed", "unlocked", "refreshed", "comment", "approved",
        "renamed", "moved",
    }  # fmt: skip
    assert [to_json(from_json(raw)) for raw in entries] == entries


def test_the_fold_of_the_entries() -> None:
    fold = StateReducer()
    for raw in load("entries.v1.json"):
        fold.apply(from_json(raw))
    fold.move_to(7)
    state = load("state.v1.json")
    assert state_to_json(fold.state()) == state
    assert state_from_json(state) == fold.state()
    from_snapshot = state_from_json(
        json.loads(json.dumps(state_to_json(fold.state(), compact=True)))
    )
    assert from_snapshot == fold.state()
    assert json.loads(json.dumps(state_to_json(from_snapshot))) == state


def test_a_directory_of_version_1(tmp_path: Path) -> None:
    """Log, snapshots and history as they lie on a disk: the state, the history and every serial."""
    shutil.copytree(GOLDEN / "directory.v1", tmp_path / "state")
    ledger = Ledger(open_directory((tmp_path / "state").as_uri()), str)
    assert ledger.state() == state_from_json(load("state.v1.json"))
    assert [row.status for row in ledger.history()] == [
        "done", "started", "TRAINING_JOB_COMPLETED", "commented", "failed", "released", "in progress",
    ]  # fmt: skip
    assert len(state_at(ledger.entries(), 1).resources) == 1
    shutil.rmtree(tmp_path / "state" / "snapshots")
    replayed = Ledger(open_directory((tmp_path / "state").as_uri()), str)
    assert replayed.state() == ledger.state()


def test_a_future_state_is_refused() -> None:
    with pytest.raises(StateError, match="newer trainctl") as caught:
        state_from_json(load("state.v2.json"))
    assert "Install" in caught.value.detail


def test_a_future_entry_is_refused() -> None:
    with pytest.raises(StateError, match="'promise'"):
        from_json(load("entries.v2.json")[0])


@pytest.mark.parametrize("field", ["intent", "address", "recorded", "time"])
def test_a_damaged_entry_is_named(field: str) -> None:
    raw = next(row for row in load("entries.v1.json") if row["type"] == "outcome")
    without = {name: value for name, value in raw.items() if name != field}
    with pytest.raises(StateError, match=raw["id"]):
        from_json(without)
    with pytest.raises(StateError, match=raw["id"]):
        from_json({**raw, "address": "nonsense", "recorded": 3})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"version": 0},
        {"version": "1"},
        {"version": 1},
        {"version": 1, "lineage": "x", "serial": 1, "resources": [3]},
    ],
)
def test_what_is_not_a_state_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(StateError):
        state_from_json(body)
