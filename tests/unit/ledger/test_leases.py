"""Keeping leases, and noticing when they can't be kept."""

from __future__ import annotations

import threading

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import SFT, FakeClock, begin, elsewhere, ledger_on, record
from tests.support.storage.log_faults import FaultyLog, StoreFault, StoreFaults
from trainctl.errors import LockHeld
from trainctl.ledger.leases import LeaseRenewer


def renewals(log: MemoryLog) -> int:
    return sum(entry["type"] == "lease_renewed" for entry in log.replay())


def test_all_leases_are_renewed_in_one_append() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.renew()
    assert log.read().next == 0
    intents = [begin(ledger), begin(ledger, address=type(SFT)(SFT.kind, "other"))]
    before = log.read().next
    ledger.renew()
    assert log.read().next == before + 1
    assert sorted(list(log.replay())[-1]["intents"]) == sorted(one.id for one in intents)  # type: ignore[type-var,arg-type]


def test_the_keeper_renews_while_it_is_entered() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    begin(ledger)
    with LeaseRenewer(ledger, lambda: None, interval=0.01):
        while renewals(log) < 3:
            threading.Event().wait(0.01)
    threading.Event().wait(0.05)
    after = renewals(log)
    threading.Event().wait(0.1)
    assert renewals(log) == after >= 3


def test_a_holder_that_can_not_renew_is_told() -> None:
    """Once for a lease, when its whole length has passed since the append that last renewed it began."""
    clock, told = FakeClock(), []
    ledger = ledger_on(MemoryLog(), clock)
    begin(ledger)
    keeper = LeaseRenewer(ledger, lambda: told.append(clock.at))
    clock.at += 29
    keeper.check()
    assert told == []
    ledger.renew()
    clock.at += 29
    keeper.check()
    assert told == []
    clock.at += 1
    keeper.check()
    keeper.check()
    assert told == [1059.0]


def test_it_is_told_while_an_append_hangs() -> None:
    """A dead disk holds the renewing thread; the looking thread still sees the clock."""
    clock, lost = FakeClock(), threading.Event()
    faults = StoreFaults({2: StoreFault.STALL})
    ledger = ledger_on(FaultyLog(MemoryLog(), faults), clock)
    begin(ledger)
    with LeaseRenewer(ledger, lost.set, interval=0.01):
        assert faults.stalled.wait(10)
        clock.at += 31
        assert lost.wait(10)
        faults.release()


def test_it_is_told_when_another_took_over() -> None:
    log, lost = MemoryLog(), threading.Event()
    ledger = ledger_on(log)
    intent = begin(ledger)
    ledger_on(log, holder=elsewhere()).release(intent.id)
    with LeaseRenewer(ledger, lost.set, interval=0.01):
        assert lost.wait(10)
    with pytest.raises(LockHeld):
        ledger.finish(intent, record())


def test_a_watcher_never_takes_over_before_the_holder_knows() -> None:
    """At the moment a watcher may take the lease, the holder, counting from before its renewal, has been told."""
    log, clock, told = MemoryLog(), FakeClock(), []
    holder, watcher = ledger_on(log, clock, elsewhere()), ledger_on(log, clock)
    begin(holder)
    keeper = LeaseRenewer(holder, lambda: told.append(clock.at))
    taken = False
    while not taken:
        try:
            begin(watcher)
            taken = True
        except LockHeld:
            clock.at += 0.5
            keeper.check()
    assert told
