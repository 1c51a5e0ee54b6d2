"""Three clients of one state that are killed, fall asleep, and get no, late or false answers; what must hold after each step.

The clients' clocks run alike and show other times. A step is one call of a ledger: plan, begin, renew, the ways to end, a snapshot with its
pruning, a kill, time. Checked after each: the history only grows, and has all that was reported as recorded; the serial only grows; a change
planned on a version began on that version; at most one client acts on an address.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.storage.ledgers import elsewhere
from trainctl.base.clock import Clock
from trainctl.errors import LockHeld, StalePlan, StateError
from trainctl.ledger.codec import state_to_json
from trainctl.ledger.entries import CommentEntry, OutcomeEntry, from_json
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import Intent, LeaseHolder, RecordedResource
from trainctl.model.address import Address
from trainctl.store.objects import MemoryObjects
from trainctl_state import BucketLog, ObjectLog

ADDRESSES = tuple(
    map(Address.parse, ("job.a", "job.b", "job.c", "job.d", "weights.v", "weights.w"))
)
FAULTS = (
    *("failed", "lost", "late", "taken", "busy", "expired", "killed", "killed after"),
    *("asleep", "asleep after"),
)
"""``taken``: done, and refused by the answer; ``busy``: not done, and refused; ``expired``: this request and the next two fail; ``asleep``:
done when the client wakes up; ``asleep after``: done, and the answer lost when it wakes up."""
LEASE = 31.0


class KilledError(BaseException):
    """The process of a client is gone."""


@dataclass
class Client:
    """One process at a time: its ledger, what it planned, and what it holds."""

    log: ObjectLog
    holder: LeaseHolder
    ledger: Ledger
    plans: dict[Address, int] = field(default_factory=dict)
    held: dict[Address, Intent] = field(default_factory=dict)
    fault: str | None = None
    failing: int = 0
    asleep: bool = False


class ClientClock(Clock):
    """The time of the world, shown differently."""

    def __init__(self, world: StateWorld, wall: float, boot: float) -> None:
        self._world = world
        self._wall = wall
        self._boot = boot

    def now(self) -> float:
        return self._world.time + self._wall

    def elapsed(self) -> float:
        return self._world.time + self._boot

    def sleep(self, seconds: float) -> None:
        self._world.time += seconds


class ClientStore:
    """The objects as a client gets at them: its next conditional write may go wrong."""

    def __init__(self, world: StateWorld, number: int) -> None:
        self._world = world
        self._number = number

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._world.store, name)
        return lambda *words, **more: self._world.request(
            self._number, name, lambda: act(*words, **more)
        )


class StateWorld:
    """``chance`` decides everything."""

    def __init__(self, kind: type[ObjectLog], chance: Random) -> None:
        self.kind = kind
        self.chance = chance
        self.store = MemoryObjects()
        self.time = 1000.0
        self._names = itertools.count()
        self._steps = 0
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._ids: list[str] = []
        self._reducer = StateReducer()
        self._ended: set[str] = set()
        self._confirmed: set[str] = set()
        self._confirmed_ends: set[str] = set()
        self._notes: set[str] = set()
        self._confirmed_notes: set[str] = set()
        self._versions: dict[str, int] = {}
        self.clients = [self._client(number) for number in range(3)]

    def _client(self, number: int) -> Client:
        log = self.kind(ClientStore(self, number), "memory:world")
        clock = ClientClock(self, 1e6 * (number - 1), 500.0 * number)
        holder = elsewhere(f"p{next(self._names)}")
        return Client(log, holder, Ledger(log, str, clock, holder=holder))

    def request(self, number: int, name: str, act: Callable[[], Any]) -> Any:
        """Do what a client asks of the store, or what happens instead."""
        client = self.clients[number]
        if client.failing:
            client.failing -= 1
            raise StateError("the token has expired")
        if name != "put_if_absent" or client.fault is None:
            return act()
        fault, client.fault = client.fault, None
        if fault == "asleep":
            self._sleep(client)
            return act()
        return self._go_wrong(client, fault, act)

    def _go_wrong(self, client: Client, fault: str, act: Callable[[], Any]) -> bool:
        if fault == "late":
            self._late.append((self._steps + self.chance.randrange(1, 6), act))
        if fault in ("lost", "taken", "killed after", "asleep after"):
            act()
        if fault == "asleep after":
            self._sleep(client)
            client.failing = self.chance.randrange(2)  # the next request, which would have told
        if fault in ("taken", "busy"):
            return False
        if fault == "expired":
            client.failing = 2
        raise KilledError if fault.startswith("killed") else StateError(fault)

    def _sleep(self, client: Client) -> None:
        client.asleep = True
        for _ in range(self.chance.randrange(10)):
            self.time += self.chance.choice((0.1, 10.0, LEASE))
            self.step()
        if self.chance.random() < 0.5:  # others go on and prune what is in flight
            other = next(other for other in self.clients if not other.asleep)
            for _ in range(2):
                self._note(other, ADDRESSES[0])
                self._snapshot(other, ADDRESSES[0])
        client.asleep = False

    def step(self) -> None:
        """One call by a client that is awake, then all checks."""
        awake = [client for client in self.clients if not client.asleep]
        is_nested = len(awake) < len(self.clients)
        client, address = self.chance.choice(awake), self.chance.choice(ADDRESSES)
        if self.chance.random() < 0.6:
            client.fault = self.chance.choice(FAULTS[:-2] if is_nested else FAULTS)
        often = (self._plan, self._begin, self._end, self._end)
        rare = (self._note, self._renew, self._snapshot, self._wait, self._wait, self._kill)
        act = self.chance.choice((*often * 4, *rare))
        self._steps += 1
        try:
            with suppress(StateError):
                act(client, address)
        except KilledError:
            self._kill(client, address)
        client.fault, client.failing = None, 0
        for entry in [entry for entry in self._late if entry[0] <= self._steps]:
            self._late.remove(entry)
            entry[1]()
        self.check()

    def _plan(self, client: Client, address: Address) -> None:
        client.plans = dict(client.ledger.state().versions)
        client.plans.setdefault(address, 0)

    def _begin(self, client: Client, address: Address) -> None:
        seen = client.plans.get(address) if self.chance.random() < 0.5 else None
        key = f"k{next(self._names)}"
        try:
            intent = client.ledger.begin(
                IntentRequest(address, "create", "local", key, {}, plan=key, seen=seen)
            )
        except (LockHeld, StalePlan) as error:
            self.check()
            before = self._reducer.open.get(address)
            if isinstance(error, LockHeld) and before and before.holder == client.holder:
                held = [intent.id for intent in client.held.values()]
                assert before.id in held, "a client is locked out by itself"
            return
        client.held[address] = intent
        self._confirmed.add(intent.id)
        self.check()
        assert seen in (None, self._versions[intent.id]), "a stale plan was applied"

    def _end(self, client: Client, _: Address) -> None:
        if not client.held:
            return
        address = self.chance.choice(list(client.held))
        intent = client.held.pop(address)
        how = self.chance.choice(("finish", "finish", "remove", "fail", "leave"))
        recorded = RecordedResource(address, "local", {}, {"n": next(self._names)})
        try:
            if how == "fail":
                client.ledger.fail(intent, "no")
            elif how != "leave":
                client.ledger.finish(intent, recorded if how == "finish" else None)
                self._confirmed_ends.add(intent.id)
        except LockHeld:
            self.check()
            assert intent.id not in self._ended, "a recorded outcome was reported as refused"
        finally:
            client.ledger.leave_open(intent)

    def _note(self, client: Client, _: Address) -> None:
        text = f"note {next(self._names)}"
        client.ledger.note(text)
        self._confirmed_notes.add(text)

    def _renew(self, client: Client, _: Address) -> None:
        for intent in client.ledger.renew():
            client.held.pop(intent.address, None)

    def _snapshot(self, client: Client, _: Address) -> None:
        state = client.ledger.state()
        client.log.snapshot(state.position, state_to_json(state))

    def _wait(self, _: Client, __: Address) -> None:
        self.time += self.chance.choice((1.0, 10.0, LEASE, LEASE))

    def _kill(self, client: Client, _: Address) -> None:
        number = self.clients.index(client)
        self.clients[number] = self._client(number)

    def check(self) -> None:
        """Compare the log with what was reported."""
        entries = list(self.kind(self.store, "memory:world").replay())
        ids = [str(entry["id"]) for entry in entries]
        assert ids[: len(self._ids)] == self._ids, "the history changed"
        assert len(set(ids)) == len(ids), "an entry is there twice"
        serial = self._reducer.serial
        for entry in map(from_json, entries[len(self._ids) :]):
            if isinstance(entry, Intent):
                self._versions[entry.id] = self._reducer.versions.get(entry.address, 0)
            changed = self._reducer.apply(entry)
            assert self._reducer.serial >= serial, "the serial shrank"
            serial = self._reducer.serial
            if isinstance(entry, CommentEntry):
                assert entry.text not in self._notes, "a note was written twice"
                self._notes.add(entry.text)
            if isinstance(entry, OutcomeEntry) and changed:
                self._ended.add(entry.intent)
        self._ids = ids
        assert self._confirmed <= set(ids), "a lease that was granted is not recorded"
        assert self._confirmed_ends <= self._ended, "an outcome that was reported is not recorded"
        assert self._confirmed_notes <= self._notes, "a note that was reported is not recorded"
        acting = Counter(address for client in self.clients for address in self._acts_on(client))
        assert all(count == 1 for count in acting.values()), f"two act on {acting}"

    def _acts_on(self, client: Client) -> list[Address]:
        now = client.ledger.clock.elapsed()
        alive = {
            lease.intent.id
            for lease in client.ledger.held()
            if now - lease.since < lease.intent.lease_seconds
        }
        return [address for address, intent in client.held.items() if intent.id in alive]

    def check_settled(self) -> None:
        """In the end: every reader sees the replayed state, and nobody is locked out once leases are over."""
        for _, act in self._late:
            act()
        self._late = []
        self.check()
        self.clients = [self._client(number) for number in range(3)]
        self._reducer.move_to(self.clients[0].ledger.state().position)
        for client in self.clients:
            assert client.ledger.state() == self._reducer.state()
        last = self.clients[0]
        for address in ADDRESSES:
            with suppress(LockHeld):
                last.ledger.finish(self._next(last, address), None)
        self.time += LEASE
        for address in last.ledger.state().open_intents:
            last.ledger.finish(self._next(last, address), None)
        assert not last.ledger.state().open_intents
        self.check()

    def _next(self, client: Client, address: Address) -> Intent:
        key = f"k{next(self._names)}"
        return client.ledger.begin(IntentRequest(address, "create", "local", key, {}))


def run(kind: type[ObjectLog], chance: Random, steps: int) -> None:
    """Live through so many steps."""
    world = StateWorld(kind, chance)
    for _ in range(steps):
        world.step()
    world.check_settled()


KINDS: tuple[type[ObjectLog], ...] = (BucketLog, ObjectLog)
