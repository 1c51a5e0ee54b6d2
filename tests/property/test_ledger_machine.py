"""Two ledgers on one log, with crashes and lost answers: one address has one holder, nothing is lost."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import FakeClock, elsewhere
from tests.support.storage.log_faults import FaultyLog, StoreFault, StoreFaults
from trainctl.errors import LockHeld, StateError
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.history import state_at
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.address import Address
from trainctl.store.objects import MemoryObjects
from trainctl_state.log import ObjectLog

ADDRESSES = [Address.parse(text) for text in ("job.a", "job.b", "weights.w")]
INDEXES = st.sampled_from([0, 1])
TARGETS = st.sampled_from(ADDRESSES)
FAULTS = st.sampled_from([None, None, None, StoreFault.FAIL, StoreFault.LOSE])


class TwoLedgers(RuleBasedStateMachine):
    """Each ledger is a process on a machine of its own; a crash replaces it by a new one."""

    @initialize(reference=st.booleans())
    def start(self, reference: bool) -> None:
        self.log = MemoryLog() if reference else ObjectLog(MemoryObjects(), "memory:machine")
        self.clock = FakeClock()
        self.names = itertools.count()
        self.faults: list[StoreFaults] = [StoreFaults(), StoreFaults()]
        self.ledgers: list[Ledger] = [self.new(0), self.new(1)]
        self.held: list[dict[Address, Intent]] = [{}, {}]
        self.outcomes: dict[Address, int] = {}
        self.effects: dict[Address, object] = {}

    def new(self, index: int) -> Ledger:
        self.faults[index] = StoreFaults()
        log = FaultyLog(self.log, self.faults[index])
        return Ledger(log, str, self.clock, holder=elsewhere(f"p{next(self.names)}"))

    @rule(index=INDEXES, address=TARGETS, fault=FAULTS)
    def begin(self, index: int, address: Address, fault: StoreFault | None) -> None:
        """An address is leased only while no other ledger may hold a live lease."""
        self.faults[index].always = fault
        ledger = self.ledgers[index]
        before = ledger.state().open_intents.get(address)
        try:
            key = f"k{next(self.names)}"
            intent = ledger.begin(IntentRequest(address, "create", "local", key, {}))
        except (LockHeld, StateError):
            assert fault is StoreFault.FAIL or address in ledger.state().open_intents
            return
        finally:
            self.faults[index].always = None
        other = self.held[1 - index].get(address)
        if other is not None:
            since = {item.intent.id: item.since for item in self.ledgers[1 - index].held()}
            assert self.clock.at - since[other.id] >= other.lease_seconds
        mine = self.held[index].get(address)
        # Another ledger may have taken over this ledger's intent and finished since.
        assert mine is None or before is None or mine.id != before.id
        self.held[index][address] = intent

    @rule(
        index=INDEXES,
        address=TARGETS,
        fault=FAULTS,
        end=st.sampled_from(["finish", "remove", "fail", "leave"]),
    )
    def end(self, index: int, address: Address, fault: StoreFault | None, end: str) -> None:
        """An end counts exactly when it is reported to count."""
        intent = self.held[index].get(address)
        if intent is None:
            return
        ledger, value = self.ledgers[index], next(self.names)
        recorded = RecordedResource(address, "local", {}, {"n": value})
        mine = ledger.state().open_intents.get(address)
        self.faults[index].always = fault
        try:
            if end == "finish":
                ledger.finish(intent, recorded)
            elif end == "remove":
                ledger.finish(intent, None)
            elif end == "fail":
                ledger.fail(intent, "no")
            else:
                ledger.leave_open(intent)
        except LockHeld:
            assert mine is None or mine.id != intent.id
            del self.held[index][address]
            ledger.leave_open(intent)
            return
        except StateError:
            assert fault is StoreFault.FAIL
            return
        finally:
            self.faults[index].always = None
        del self.held[index][address]
        if end in ("finish", "remove"):
            assert mine is not None
            assert mine.id == intent.id
            self.outcomes[address] = self.outcomes.get(address, 0) + 1
            self.effects[address] = value if end == "finish" else None

    @rule(index=INDEXES)
    def crash(self, index: int) -> None:
        self.ledgers[index], self.held[index] = self.new(index), {}

    @rule(index=INDEXES, fault=FAULTS)
    def renew(self, index: int, fault: StoreFault | None) -> None:
        self.faults[index].always = fault
        try:
            lost = self.ledgers[index].renew()
        except StateError:
            return
        finally:
            self.faults[index].always = None
        for intent in lost:
            assert self.held[index].pop(intent.address).id == intent.id

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.clock.at += seconds

    @rule(index=INDEXES)
    def snapshot(self, index: int) -> None:
        state = self.ledgers[index].state()
        self.log.snapshot(state.position, state_to_json(state))

    @invariant()
    def all_see_the_same(self) -> None:
        """Both ledgers, a new one and a replay agree, and recorded outcomes are the reported ones."""
        if not hasattr(self, "log"):
            return
        states = [ledger.state() for ledger in (*self.ledgers, self.new_reader())]
        assert states[0] == states[1] == states[2]
        state = states[0]
        assert state_at(self.new_reader().entries(), state.serial).resources == state.resources
        assert {a: n for a, n in state.versions.items() if n} == self.outcomes
        for address, value in self.effects.items():
            recorded = state.resources.get(address)
            assert (None if recorded is None else recorded.outputs["n"]) == value

    def new_reader(self) -> Ledger:
        return Ledger(self.log, str, self.clock, holder=elsewhere("reader"))


TestTwoLedgers = TwoLedgers.TestCase
TestTwoLedgers.settings = settings(stateful_step_count=30)
