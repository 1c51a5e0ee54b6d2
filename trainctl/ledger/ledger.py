"""The ledger: beginning and ending effects, on the fold of a log. Safe to use from many threads."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from trainctl.base.clock import Clock
from trainctl.base.lease import STALE_SECONDS
from trainctl.errors import AlreadyApplied, LockHeld, StalePlan, StateError, UsageError
from trainctl.ledger.codec import intent_from_json
from trainctl.ledger.commit import AppendRequest, Committer, LogHead
from trainctl.ledger.entries import (
    ApprovalEntry,
    CommentEntry,
    Entry,
    EntryHeader,
    FailureEntry,
    LeaseRenewedEntry,
    OutcomeEntry,
    RefreshEntry,
    UnlockEntry,
    from_json,
)
from trainctl.ledger.history import HistoryRow, history_rows, state_at
from trainctl.ledger.leases import LeaseMonitor, current_holder, lock_held_error
from trainctl.ledger.reducer import StateReducer, merge_outputs
from trainctl.ledger.state import Intent, LeaseHolder, RecordedResource, State
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog


@dataclass(frozen=True, slots=True)
class IntentRequest:
    """An effect to begin. ``seen`` is the address's version in the plan; None: whatever it is now.

    ``same`` decides whether an attempt without a recorded end was at this very effect: its key replaces ``key`` then.
    """

    address: Address
    action: str
    provider: str
    key: str
    inputs: Mapping[str, Any]
    plan: str = ""
    reason: str = ""
    seen: int | None = None
    same: Callable[[Intent], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class LedgerLease:
    """A lease of this process, and when the append that last renewed it began, on the clock that counts sleep."""

    intent: Intent
    since: float


class Ledger:
    """State as a log. ``redact`` masks every known secret in a text; everything appended goes through it.

    Every method may raise StateError; those that append also Busy where the log is overrun.
    """

    def __init__(
        self,
        log: StateLog,
        redact: Callable[[str], str],
        clock: Clock | None = None,
        *,
        holder: LeaseHolder | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._holder = holder or current_holder()
        self._head = LogHead(log, self._clock)
        self._committer = Committer(self._head, redact, self._clock, self.header)
        self._held: dict[str, LedgerLease] = {}
        self._held_lock = threading.Lock()
        self._watch = LeaseMonitor(self._holder, self._clock, self._held.__contains__)

    @property
    def url(self) -> str:
        """Where the state is, for people."""
        return self._head.log.url

    @property
    def clock(self) -> Clock:
        """The clock that leases are counted by."""
        return self._clock

    def state(self) -> State:
        """The state as of now; costs what was appended since the last look. Appends nothing."""
        seen: list[State] = []

        def look(fold: StateReducer) -> list[Entry]:
            seen[:] = [fold.state()]
            return []

        self._committer.submit(AppendRequest((), look))
        return seen[0]

    def known(self) -> State:
        """The state as of the last look or append of this process: of whatever it holds a lease on, the newest."""
        return self._head.known

    def recorded(self, address: Address) -> RecordedResource | None:
        """The record of a resource as of the last look or append of this process, without looking again."""
        return self._head.known.resources.get(address)

    def append(self, build: Callable[[State], Sequence[Entry]]) -> State:
        """Append what ``build`` makes of the newest state, in one append; it is asked again whenever others were first."""
        self._committer.submit_alone(lambda fold: build(fold.state()))
        return self.state()

    def header(self) -> EntryHeader:
        """What an entry that is appended now begins with."""
        return EntryHeader(str(uuid.uuid4()), self._clock.now(), self._holder.actor)

    def begin(self, start: IntentRequest) -> Intent:
        """Take the lease on an address, before an effect is caused.

        Busy if another holds it; StalePlan if it has moved since the plan saw version ``seen``, AlreadyApplied if that was under the
        same plan: an intent to do again what is done would be resumed once its holder is dead.
        """
        began = self._clock.elapsed()
        intent = self._intent(start)

        def decide(fold: StateReducer) -> list[Entry]:
            self._check(fold, start)
            return [replace(intent, key=_key(fold, start))]

        with self._held_lock:
            self._held[intent.id] = LedgerLease(intent, began)
        request = AppendRequest((start.address,), decide)
        try:
            self._committer.submit(request)
        except BaseException:
            self.abandon(intent)
            raise
        return intent_from_json(request.raw[0])

    def finish(self, intent: Intent, recorded: RecordedResource | None, *, error: str = "") -> None:
        """Record what came of an intent: the whole resource, or None as it is gone. Busy if the lease was lost meanwhile.

        ``error`` says what failed where there is something to record nevertheless.
        """
        self._end(
            intent,
            lambda header: OutcomeEntry(
                header, intent.id, intent.address, recorded, intent.action, intent.plan, error
            ),
        )

    def record(
        self, made: Sequence[tuple[IntentRequest, RecordedResource | None]]
    ) -> frozenset[Address]:
        """Record what has no effect outside the state: intent and outcome of all in one append; the addresses that it was done for.

        One that another holds, or that has moved since its plan, is left out: ``begin`` says why.
        """
        done: set[Address] = set()

        def decide(fold: StateReducer) -> list[Entry]:
            done.clear()
            found: list[Entry] = []
            for start, recorded in made:
                try:
                    self._check(fold, start)
                except (LockHeld, StalePlan):
                    continue
                intent = self._intent(start)
                header = self.header()
                done.add(start.address)
                found += (
                    intent,
                    OutcomeEntry(
                        header, intent.id, intent.address, recorded, intent.action, intent.plan
                    ),
                )
            return found

        self._committer.submit(AppendRequest([start.address for start, _ in made], decide))
        return frozenset(done)

    def fail(self, intent: Intent, error: str, *, waits: bool = False) -> None:
        """Record that an effect failed. Its key stays in ``State.unfinished`` until the address's next outcome, unless it
        ``waits``: it was put off before it left anything."""
        self._end(
            intent, lambda header: FailureEntry(header, intent.id, intent.address, error, waits)
        )

    def abandon(self, intent: Intent) -> None:
        """Stop renewing an intent whose end is unknown: it stays open, for the next apply."""
        with self._held_lock:
            self._held.pop(intent.id, None)

    def release(self, intent_id: str) -> Intent:
        """End a lease by hand, whatever process holds it. UsageError, with the open ones, if it isn't open."""
        released: list[Intent] = []

        def decide(fold: StateReducer) -> list[Entry]:
            intent = fold.open_by_id(intent_id)
            if intent is None:
                known = ", ".join(f"{i.id} ({i.address})" for i in fold.open.values())
                raise UsageError(f"lock {intent_id!r} not found", f"Open: {known or 'none'}.")
            released[:] = [intent]
            return [UnlockEntry(self.header(), intent.id, intent.address)]

        self._committer.submit_alone(decide)
        self.abandon(released[0])
        return released[0]

    def observe(self, address: Address, outputs: Mapping[str, Any]) -> None:
        """Append what was seen of a recorded resource; nothing if the state says so already."""
        self.observe_many({address: outputs})

    def observe_many(self, seen: Mapping[Address, Mapping[str, Any]]) -> None:
        """Append what was seen of several resources in one append."""

        def decide(fold: StateReducer) -> list[Entry]:
            return [
                RefreshEntry(self.header(), address, outputs)
                for address, outputs in seen.items()
                if (recorded := fold.find_record(address)) is not None
                and merge_outputs(recorded.outputs, outputs) is not recorded.outputs
            ]

        self._committer.submit(AppendRequest(tuple(seen), decide))

    def approve(self, plan: str, changes: Mapping[Address, str]) -> None:
        """Append that these changes were agreed to, each by the digest of the values that it makes so."""
        self._committer.submit(
            AppendRequest(tuple(changes), lambda _: [ApprovalEntry(self.header(), plan, changes)])
        )

    def note(self, text: str, address: Address | None = None) -> None:
        """Append a remark, for the history."""
        self._committer.submit(
            AppendRequest((), lambda _: [CommentEntry(self.header(), text, address)])
        )

    def flush(self) -> None:
        """Say that nothing more will be appended for now: what was is put where it is quickly read, if it was much."""

        def flush(_: StateReducer) -> list[Entry]:
            self._head.flush()
            return []

        with suppress(StateError, LockHeld):  # it is all there already
            self._committer.submit(AppendRequest((), flush))

    def renew(self) -> tuple[Intent, ...]:
        """Renew every lease of this process in one append; those that are lost: ended by others."""
        began = self._clock.elapsed()
        held = {one.intent.id: one.intent for one in self.held()}
        if not held:
            return ()
        alive: list[str] = []

        def decide(fold: StateReducer) -> list[Entry]:
            alive[:] = [each for each in held if fold.open_by_id(each) is not None]
            return [LeaseRenewedEntry(self.header(), tuple(alive))] if alive else []

        self._committer.submit(AppendRequest([each.address for each in held.values()], decide))
        with self._held_lock:
            lost = [i for each, i in held.items() if each not in alive and each in self._held]
            for each, intent in held.items():
                if each in self._held and each in alive:
                    self._held[each] = LedgerLease(intent, began)
            for intent in lost:
                del self._held[intent.id]
        return tuple(lost)

    def held(self) -> tuple[LedgerLease, ...]:
        """The leases of this process. Never waits for an append."""
        with self._held_lock:
            return tuple(self._held.values())

    def history(self, address: Address | None = None) -> list[HistoryRow]:
        """Everything that happened, or all that happened to one address, the oldest first."""
        return history_rows(map(from_json, self._head.log.replay()), address)

    def state_at(self, serial: int) -> State:
        """The state as it was at that serial. UsageError if it has not been reached yet."""
        return state_at(map(from_json, self._head.log.replay()), serial)

    def _check(self, fold: StateReducer, start: IntentRequest) -> None:
        holding = fold.open.get(start.address)
        if holding is not None and not self._watch.is_over(holding, self._head.looked_at):
            raise lock_held_error(holding)
        if start.seen is None or fold.versions.get(start.address, 0) == start.seen:
            return
        kind = StalePlan if fold.moved(start.address, start.seen, start.plan) else AlreadyApplied
        raise kind(
            f"{start.address} has changed since the plan was made",
            "Plan again.",
            address=str(start.address),
        )

    def _end(self, intent: Intent, make: Callable[[EntryHeader], Entry]) -> None:
        def decide(fold: StateReducer) -> list[Entry]:
            if fold.open_by_id(intent.id) is None:
                raise _lost(intent, fold.open.get(intent.address))
            return [make(self.header())]

        self._committer.submit(AppendRequest((intent.address,), decide))
        self.abandon(intent)

    def _intent(self, start: IntentRequest) -> Intent:
        return Intent(
            id=str(uuid.uuid4()),
            address=start.address,
            action=start.action,
            provider=start.provider,
            key=start.key,
            inputs=start.inputs,
            holder=self._holder,
            time=self._clock.now(),
            lease_seconds=STALE_SECONDS,
            plan=start.plan,
            reason=start.reason,
        )


def _key(fold: StateReducer, start: IntentRequest) -> str:
    """The key of the newest attempt at the same, which may have been made after the plan; else the one that was given."""
    left = (fold.open.get(start.address), *reversed(fold.orphaned_intents.get(start.address, ())))
    return next((one.key for one in left if one is not None and start.same(one)), start.key)


def _lost(intent: Intent, holding: Intent | None) -> LockHeld:
    taken = f"taken over by {holding.holder.actor}" if holding else "released by another command"
    return LockHeld(
        f"the lock on {intent.address} was {taken}",
        "Changes of this command to the resource are not recorded. Plan again.",
        address=str(intent.address),
        code="lease-lost",
    )
