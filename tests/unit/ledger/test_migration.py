"""Moving a state to another place: refused, completed, killed at every write, undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import begin, ledger_on, record
from tests.support.storage.log_faults import FaultyStore, StoreFault, StoreFaults
from trainctl.errors import LockHeld, StateError, StateMoved, UsageError
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.migration import abort_migration, migrate
from trainctl_state import BucketLog, directory_objects, open_directory
from trainctl_state.log import ObjectLog

URL = "memory:new"


def used(ledger: Ledger) -> Ledger:
    """A ledger with a resource and a comment."""
    ledger.finish(begin(ledger), record(outputs={"o": 1}, key="k1"))
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
