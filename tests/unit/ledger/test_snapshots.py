"""When a ledger takes snapshots: often enough for whoever reads, and never at the cost of what it is for."""

from __future__ import annotations

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import SFT, begin, ledger_on, record
from trainctl.base.json import JsonObject
from trainctl.errors import StateError
from trainctl.ledger.commit import SNAPSHOT_APPENDS
from trainctl.ledger.ledger import IntentRequest
from trainctl.model.address import Address


def test_snapshots_are_taken_now_and_then() -> None:
    """After enough appends a new reader starts at a snapshot, and folds to the same state and the same history."""
    log = MemoryLog()
    ledger = ledger_on(log)
    for number in range(SNAPSHOT_APPENDS):
        address = Address.parse(f"job.j{number % 7}")
        intent = begin(ledger, address, plan=f"p{number % 3}")
        if number % 5 == 4:
            ledger.fail(intent, "no")
        else:
            ledger.finish(intent, record(address))
    fresh = ledger_on(log)
    assert log.read().snapshot is not None
    assert len(log.read().entries) < 250
    assert fresh.state() == ledger.state()
    assert len(fresh.history()) == SNAPSHOT_APPENDS


def test_who_appended_much_leaves_little_to_read() -> None:
    """In few appends or many; who appended little takes no snapshot, nor does who took one already."""
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.record([(IntentRequest(SFT, "create", "local", "k", {}), record())])
    ledger.flush()
    assert log.read().snapshot is None
    many = [Address.parse(f"project.p{number}") for number in range(300)]
    ledger.record([(IntentRequest(one, "create", "local", "k", {}), record(one)) for one in many])
    ledger.flush()
    found = log.read()
    assert (found.snapshot is not None, found.entries) == (True, ())
    assert ledger_on(log).state() == ledger.state()
    ledger.note("little")
    ledger.flush()
    assert len(log.read().entries) == 1


class _WithoutSnapshots(MemoryLog):
    def snapshot(self, position: int, state: JsonObject) -> None:
        raise StateError("no space left")


def test_a_snapshot_that_fails_harms_no_append() -> None:
    log = _WithoutSnapshots()
    ledger = ledger_on(log)
    for number in range(SNAPSHOT_APPENDS + 5):
        ledger.note(str(number))
    assert log.read().snapshot is None
    assert ledger_on(log).state().position == SNAPSHOT_APPENDS + 5
