"""Beginning and ending effects: who may, who is refused, what is written."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import (
    PREP,
    SFT,
    FakeClock,
    begin,
    dead_here,
    elsewhere,
    ledger_on,
    record,
)
from tests.support.storage.log_faults import FaultyLog, StoreFault, StoreFaults
from trainctl.errors import (
    AlreadyApplied,
    LockHeld,
    StalePlan,
    StateError,
    UsageError,
)
from trainctl.ledger.leases import current_holder
from trainctl.ledger.ledger import IntentRequest
from trainctl.model.address import Address
from trainctl.model.redaction import MASK, Redactor
from trainctl.plugin_api.state import LogSlice


def test_lineage_is_born_with_the_first_append() -> None:
    """Reading makes none; two that begin at once agree on one."""
    log = MemoryLog()
    ledger, other = ledger_on(log), ledger_on(log, holder=elsewhere())
    assert ledger.state().lineage == ""
    assert log.read().next == 0
    begin(ledger)
    begin(other, PREP)
    assert ledger.state().lineage == other.state().lineage != ""


def test_a_state_takes_over_the_lineage_of_the_first_plan() -> None:
    """A plan for another one is refused, also when the other entry was first by a moment; both are named."""
    log = MemoryLog()
    ledger, other, late = ledger_on(log), ledger_on(log, holder=elsewhere()), ledger_on(log)
    ledger.require_lineage("mine")
    other.require_lineage("yours")
    assert ledger.state().lineage == other.state().lineage == ""
    begin(ledger)
    for act in (lambda: begin(other, PREP), other.state):
        with pytest.raises(StalePlan, match="has the lineage mine, but the plan is for yours"):
            act()
    begin(late, PREP)
    assert ledger.state().lineage == late.state().lineage == "mine"


def test_an_effect_from_intent_to_outcome() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    intent = begin(ledger, plan="sha256:p", reason="because", seen=0)
    assert (intent.address, intent.key, intent.plan, intent.reason) == (
        SFT,
        "k1",
        "sha256:p",
        "because",
    )
    assert intent.holder == current_holder()
    ledger.finish(intent, record(outputs={"o": 1}, key="k1"))
    state = ledger_on(log).state()
    assert state == ledger.state()
    assert state.resources[SFT] == record(outputs={"o": 1}, key="k1", version=1)
    assert ledger.recorded(SFT) == state.resources[SFT]
    assert ledger.held() == ()


def test_an_address_that_another_holds_is_refused() -> None:
    """Busy, exit code 10, with who, since when, until when and how to end it; another address is free."""
    log = MemoryLog()
    holding = begin(ledger_on(log, holder=elsewhere("ann")))
    with pytest.raises(LockHeld) as caught:
        begin(ledger_on(log))
    assert caught.value.exit_code == 10
    text = str(caught.value)
    assert "job.sft" in text
    assert "ann@far" in text
    assert "since 19" in text
    assert "until 19" in text
    assert holding.id in text
    begin(ledger_on(log), PREP)


def test_a_dead_holder_is_taken_over_at_once() -> None:
    log = MemoryLog()
    gone = ledger_on(log, holder=dead_here())
    old = begin(gone)
    new = begin(ledger_on(log), key="k2")
    with pytest.raises(LockHeld, match="taken over"):
        gone.finish(old, record())
    state = gone.state()
    assert state.open_intents[SFT].id == new.id
    assert state.resources == {}


def test_silence_is_measured_by_the_watchers_own_clock() -> None:
    """However old the intent says it is: the lease ends only after this watcher has seen none for its whole length."""
    log = MemoryLog()
    begin(ledger_on(log, FakeClock(1.0), holder=elsewhere()))
    clock = FakeClock(9e9)
    watcher = ledger_on(log, clock)
    with pytest.raises(LockHeld):
        begin(watcher)
    clock.at += 29.9
    with pytest.raises(LockHeld):
        begin(watcher)
    clock.at += 0.2
    begin(watcher)


def test_a_renewal_starts_the_silence_anew() -> None:
    log, clock = MemoryLog(), FakeClock()
    holder = ledger_on(log, FakeClock(1.0), holder=elsewhere())
    begin(holder)
    watcher = ledger_on(log, clock)
    for _ in range(5):
        with pytest.raises(LockHeld):
            begin(watcher)
        clock.at += 20
        assert holder.renew() == ()
    with pytest.raises(LockHeld):
        begin(watcher)
    clock.at += 31
    begin(watcher)
    assert [item.address for item in holder.renew()] == [SFT]
    assert holder.held() == ()


def test_a_slow_read_is_no_silence() -> None:
    """What a read shows is as old as its beginning: a log that takes longer than a lease to answer proves nothing."""
    clock = FakeClock()

    class Slow(FaultyLog):
        def read(self, position: int = 0) -> LogSlice:
            data = super().read(position)
            clock.at += 40
            return data

    log = MemoryLog()
    begin(ledger_on(log, holder=elsewhere()))
    watcher = ledger_on(Slow(log, StoreFaults()), clock)
    for _ in range(2):
        with pytest.raises(LockHeld):
            begin(watcher)
    begin(watcher)


def test_an_address_that_moved_is_stale() -> None:
    """What the plan saw is checked on the newest state, in the same append. What the same plan did is not begun again: killed
    then, it would look like something to carry on."""
    log = MemoryLog()
    other = ledger_on(log, holder=elsewhere())
    ledger = ledger_on(log)
    ledger.state()
    other.finish(begin(other, plan="p", seen=0), record())
    with pytest.raises(StalePlan, match=r"job\.sft"):
        begin(ledger, plan="q", seen=0)
    with pytest.raises(AlreadyApplied):
        begin(ledger, plan="p", seen=0)
    assert ledger.held() == ()
    assert ledger.state().open_intents == {}


def test_records_are_made_in_one_append() -> None:
    """Intent and outcome of each together; one that another holds, and one that has moved, are left out and stay as they are."""
    log = MemoryLog()
    ledger, other = ledger_on(log), ledger_on(log, holder=elsewhere())
    held, moved = (Address.parse(f"project.{name}") for name in ("held", "moved"))
    begin(other, held)
    other.finish(begin(other, moved), record(moved))
    free = [Address.parse(f"project.p{number}") for number in range(100)]
    before = log.read().next
    created = [
        (IntentRequest(item, "create", "local", "k", {}, "p", seen=0), record(item))
        for item in (*free, held, moved)
    ]
    assert ledger.record(created) == set(free)
    state = ledger.state()
    assert log.read().next == before + 1
    assert set(state.resources) == {*free, moved}
    assert set(state.open_intents) == {held}
    assert {state.versions[item] for item in free} == {1}
    assert [(row.action, row.status) for row in ledger.history(free[0])] == [("create", "done")]


def test_what_is_left_open_may_be_taken_at_once_by_oneself() -> None:
    """An intent of unknown end isn't renewed any more; this process may begin there again, others wait for the lease."""
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.leave_open(begin(ledger))
    assert ledger.held() == ()
    assert ledger.renew() == ()
    with pytest.raises(LockHeld):
        begin(ledger_on(log, holder=elsewhere()))
    begin(ledger)


def test_release_ends_a_lease_by_hand() -> None:
    """Whoever holds it: it is free at once; its holder's outcome is refused; the wrong id names the right ones."""
    log = MemoryLog()
    other = ledger_on(log, holder=elsewhere())
    intent = begin(other)
    ledger = ledger_on(log)
    with pytest.raises(UsageError, match="nonsense") as caught:
        ledger.release("nonsense")
    assert intent.id in caught.value.detail
    assert ledger.release(intent.id).address == SFT
    begin(ledger)
    with pytest.raises(LockHeld):
        other.finish(intent, record())


def test_observing_appends_only_news() -> None:
    log = MemoryLog()
    ledger = ledger_on(log)
    ledger.finish(begin(ledger), record())
    ledger.observe_many({SFT: {"a": 1}, PREP: {"a": 1}})
    head = log.read().next
    ledger.observe(SFT, {"a": 1})
    assert log.read().next == head
    assert ledger.state().resources[SFT].outputs == {"a": 1}


def test_secrets_do_not_enter() -> None:
    redactor, log = Redactor(), MemoryLog()
    redactor.register("hunter2-hunter2")
    ledger = ledger_on(
        log, redact=redactor.redact, holder=replace(elsewhere(), actor="hunter2-hunter2@x")
    )
    intent = ledger.begin(
        IntentRequest(
            SFT, "create", "local", "k", {"deep": [{"hunter2-hunter2": "xhunter2-hunter2"}]}
        )
    )
    assert intent.inputs == {"deep": [{MASK: f"x{MASK}"}]}
    ledger.finish(
        intent,
        replace(record(outputs={"o": "hunter2-hunter2"}), attributes={"a": ("hunter2-hunter2",)}),
    )
    ledger.fail(begin(ledger), "wrong: hunter2-hunter2")
    ledger.note("hunter2-hunter2")
    ledger.observe(SFT, {"token": "hunter2-hunter2"})
    assert "hunter2" not in repr(list(log.replay()))
    assert "hunter2" not in repr(ledger.state())


def test_a_lost_answer_is_found_out() -> None:
    """An append that raises and happened is a success; one that raises and didn't is the error, and can be repeated."""
    log = MemoryLog()
    ledger = ledger_on(FaultyLog(log, StoreFaults({1: StoreFault.LOSE, 2: StoreFault.FAIL})))
    intent = begin(ledger)
    with pytest.raises(StateError, match="planted"):
        ledger.finish(intent, record())
    assert [item.intent.id for item in ledger.held()] == [intent.id]
    ledger.finish(intent, record())
    assert ledger.state().serial == 1
    assert [entry["type"] for entry in log.replay()] == ["created", "intent", "outcome"]


def while_one_hangs(log: MemoryLog, *addresses: Address) -> list[BaseException | None]:
    """Begin at PREP, and then at these addresses from a thread each, while the first append hangs: their errors."""
    faults = StoreFaults({1: StoreFault.STALL})
    ledger = ledger_on(FaultyLog(log, faults))
    with ThreadPoolExecutor(len(addresses) + 1) as pool:
        first = pool.submit(begin, ledger, PREP)
        assert faults.stalled.wait(10)
        others = [pool.submit(begin, ledger, address) for address in addresses]
        while len(ledger._committer._waiting) < len(addresses):
            threading.Event().wait(0.01)
        faults.release()
        first.result()
        return [other.exception() for other in others]


def test_what_waits_for_an_append_shares_the_next() -> None:
    log = MemoryLog()
    errors = while_one_hangs(log, *(Address.parse(f"job.j{n}") for n in range(5)))
    assert errors == [None] * 5
    assert log.read().next == 2
    assert len(ledger_on(log).state().open_intents) == 6


def test_requests_for_one_address_never_share_an_append() -> None:
    errors = while_one_hangs(MemoryLog(), *[SFT] * 5)
    assert [isinstance(error, LockHeld) for error in errors].count(True) == 4
    assert errors.count(None) == 1
