"""The ledger: thread-safe access to the state, its log and its locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from trainctl.base.clock import Clock
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lease import STALE_SECONDS
from trainctl.errors import (
    AlreadyApplied,
    LockHeld,
    StalePlan,
    StateError,
    TrainctlError,
    UsageError,
)
from trainctl.ledger.codec import intent_from_json
from trainctl.ledger.commit import AppendRequest, Committer, LogHead
from trainctl.ledger.entries import (
    ApprovalEntry,
    CommentEntry,
    Entry,
    EntryHeader,
    FailureEntry,
    LeaseRenewedEntry,
    MovedEntry,
    OutcomeEntry,
    RefreshEntry,
    UnlockEntry,
    from_json,
)
from trainctl.ledger.leases import LeaseMonitor, current_holder, lock_held_error
from trainctl.ledger.reducer import StateReducer, merge_outputs
from trainctl.ledger.state import Intent, LeaseHolder, RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.specs.checks import converted
from trainctl.plugin_api.state import StateLog

if TYPE_CHECKING:
    from trainctl.ledger.history import HistoryRow


@dataclass(frozen=True, slots=True)
class IntentRequest:
    """A change to start; ``seen`` is the version in the plan, None for any.

    ``same`` decides whether an attempt without outcome was at the same change; its key then replaces ``key``.
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
class HeldIntent:
    """A lease of this process, last renewed at ``since`` by ``clock.elapsed()``."""

    intent: Intent
    since: float


class Ledger:
    """A state log; ``redact`` masks secrets in everything appended.

    All methods may raise StateError; those that append also LockHeld if there are too many concurrent writers.
    """

    def __init__(
        self,
        log: StateLog,
        redact: Callable[[str], str],
        clock: Clock | None = None,
        *,
        holder: LeaseHolder | None = None,
    ) -> None:
        self.log = log
        self.clock = clock or Clock()
        """Clock of the leases."""
        self._holder = holder or current_holder()
        self._head = LogHead(log, self.clock)
        self._committer = Committer(self._head, redact, self.clock, self.header)
        self._held: dict[str, HeldIntent] = {}
        self._held_lock = threading.Lock()
        self._monitor = LeaseMonitor(self._holder, self.clock, self._held.__contains__)

    @property
    def url(self) -> str:
        """Location of the state, for messages."""
        return self.log.url

    @property
    def has_appended(self) -> bool:
        """Whether this process changed the state."""
        return self._head.has_appended

    def require_lineage(self, lineage: str) -> None:
        """Create a new state with this lineage; later reads of another raise StalePlan."""
        self._head.lineage = lineage

    def state(self, *, even_moved: bool = False) -> State:
        """Read new entries and return the state; StateMoved if it moved to another place."""
        states: list[State] = []

        def read(reducer: StateReducer) -> list[Entry]:
            states[:] = [reducer.state()]
            return []

        self._committer.submit(AppendRequest((), read, even_moved=even_moved))
        return states[0]

    def known(self) -> State:
        """Return the state of the last read or append; current for leased addresses."""
        return self._head.known

    def recorded(self, address: Address) -> RecordedResource | None:
        """Return a record of the last read or append."""
        return self._head.known.resources.get(address)

    def append(self, build: Callable[[State], Sequence[Entry]]) -> State:
        """Append the entries that ``build`` returns; it is called again after conflicts."""
        self._committer.submit_alone(lambda reducer: build(reducer.state()))
        return self.state()

    def header(self) -> EntryHeader:
        """Create the header of a new entry."""
        by = self._holder
        return EntryHeader(_new_id(), self.clock.now(), by.actor, by.commit, by.pipeline)

    def begin(self, start: IntentRequest) -> Intent:
        """Lock an address and record an intent before a change.

        Raises LockHeld if another process holds the lock, StalePlan if the address changed since version ``seen``, and
        AlreadyApplied if the same plan changed it.
        """
        started = self.clock.elapsed()
        intent = self._intent(start)

        def decide(reducer: StateReducer) -> list[Entry]:
            self._check(reducer, start)
            return [replace(intent, key=_key(reducer, start))]

        with self._held_lock:
            self._held[intent.id] = HeldIntent(intent, started)
        request = AppendRequest((start.address,), decide)
        try:
            self._committer.submit(request)
        except BaseException:
            self.leave_open(intent)
            raise
        return intent_from_json(request.raw[0])

    def finish(self, intent: Intent, recorded: RecordedResource | None, *, error: str = "") -> None:
        """Record the outcome, None after a removal; raise LockHeld if the lease was lost.

        ``error`` is set if the change failed but has something to record.
        """
        self._end(
            intent,
            lambda header: OutcomeEntry(
                header=header,
                intent=intent.id,
                address=intent.address,
                recorded=recorded,
                action=intent.action,
                plan=intent.plan,
                error=error,
            ),
        )

    def record(
        self, changes: Sequence[tuple[IntentRequest, RecordedResource | None]]
    ) -> frozenset[Address]:
        """Record changes without external effect in one append; return their addresses.

        Skips addresses that are locked or changed since the plan; ``begin`` raises the reason.
        """
        done: set[Address] = set()

        def decide(reducer: StateReducer) -> list[Entry]:
            done.clear()
            entries: list[Entry] = []
            for start, recorded in changes:
                try:
                    self._check(reducer, start)
                except (LockHeld, StalePlan):
                    continue
                done.add(start.address)
                outcome = OutcomeEntry(
                    header=self.header(),
                    intent="",
                    address=start.address,
                    recorded=recorded,
                    action=start.action,
                    plan=start.plan,
                    reason=start.reason or None,
                    digest=start.inputs.get("digest"),
                )
                entries.append(outcome)
            return entries

        self._committer.submit(AppendRequest([start.address for start, _ in changes], decide))
        return frozenset(done)

    def fail(self, intent: Intent, error: str, *, waits: bool = False) -> None:
        """Record a failure; the intent becomes an orphan unless it ``waits``."""
        self._end(
            intent, lambda header: FailureEntry(header, intent.id, intent.address, error, waits)
        )

    def leave_open(self, intent: Intent) -> None:
        """Stop renewing an intent without outcome; it stays open for the next apply."""
        with self._held_lock:
            self._held.pop(intent.id, None)

    def release(self, intent_id: str) -> Intent:
        """Remove a lock of any process; raise UsageError if the intent isn't open."""
        released: list[Intent] = []

        def decide(reducer: StateReducer) -> list[Entry]:
            intent = reducer.open_by_id(intent_id)
            if intent is None:
                known = ", ".join(f"{i.id} ({i.address})" for i in reducer.open.values())
                raise UsageError(f"lock {intent_id!r} not found", f"Open: {known or 'none'}.")
            released[:] = [intent]
            return [UnlockEntry(self.header(), intent.id, intent.address)]

        self._committer.submit_alone(decide)
        self.leave_open(released[0])
        return released[0]

    def observe(self, address: Address, outputs: Mapping[str, Any]) -> None:
        """Record observed outputs of a resource if they differ."""
        self.observe_many({address: outputs})

    def observe_many(self, observed: Mapping[Address, Mapping[str, Any]]) -> None:
        """Record observed outputs of several resources in one append."""

        def decide(reducer: StateReducer) -> list[Entry]:
            return [
                RefreshEntry(self.header(), address, outputs)
                for address, outputs in observed.items()
                if (recorded := reducer.find_record(address)) is not None
                and merge_outputs(recorded.outputs, outputs) is not recorded.outputs
            ]

        self._committer.submit(AppendRequest(tuple(observed), decide))

    def approve(self, plan: str, changes: Mapping[Address, str]) -> None:
        """Record approved changes as digests of their new values."""
        self._committer.submit(
            AppendRequest(tuple(changes), lambda _: [ApprovalEntry(self.header(), plan, changes)])
        )

    def note(self, text: str, address: Address | None = None) -> None:
        """Add a comment to the history."""
        self._committer.submit(
            AppendRequest((), lambda _: [CommentEntry(self.header(), text, address)])
        )

    def flush(self) -> None:
        """Take a snapshot at the end of a command if many entries were appended."""

        def flush(_: StateReducer) -> list[Entry]:
            self._head.flush()
            return []

        with suppress(StateError, LockHeld):  # a snapshot is optional
            self._committer.submit(AppendRequest((), flush))

    def renew(self) -> tuple[Intent, ...]:
        """Renew all leases of this process in one append; return the lost ones."""
        started = self.clock.elapsed()
        intents = [lease.intent for lease in self.held()]
        if not intents:
            return ()
        alive: set[str] = set()

        def decide(reducer: StateReducer) -> list[Entry]:
            ids = [intent.id for intent in intents if reducer.open_by_id(intent.id) is not None]
            alive.clear()
            alive.update(ids)
            return [LeaseRenewedEntry(self.header(), tuple(ids))] if ids else []

        self._committer.submit(AppendRequest([intent.address for intent in intents], decide))
        lost = []
        with self._held_lock:
            for intent in intents:
                if intent.id in self._held and intent.id in alive:
                    self._held[intent.id] = HeldIntent(intent, started)
                elif self._held.pop(intent.id, None):
                    lost.append(intent)
        return tuple(lost)

    def held(self) -> tuple[HeldIntent, ...]:
        """Return the leases of this process without waiting."""
        with self._held_lock:
            return tuple(self._held.values())

    def move_to(self, to: str, check: Callable[[State], None]) -> State:
        """Refuse all further appends, with the URL of the new place; '' permits them again.

        ``check`` raises an error if the state may not move. Returns the state after the entry.
        """

        def decide(reducer: StateReducer) -> list[Entry]:
            check(reducer.state())
            return [] if reducer.moved_to == to else [MovedEntry(self.header(), to)]

        self._committer.submit(AppendRequest((), decide, alone=True, even_moved=True))
        return self.known()

    def history(self, address: Address | None = None) -> list[HistoryRow]:
        """Return the history, oldest first, then changes without outcome; optionally of one address."""
        from trainctl.ledger.history import history_rows, open_rows

        rows = history_rows(self.entries(), address)
        return rows + open_rows(self.known(), address)

    def last_actor(self, address: Address) -> str:
        """Return who made the newest change of an address."""
        from trainctl.ledger.history import history_rows

        rows = history_rows(self.entries(), address)
        return next((row.actor for row in reversed(rows) if row.action != "observe"), "another")

    def entries(self) -> Iterator[Entry]:
        """Return all entries; StateMoved if the state moved."""
        self.state()
        return map(from_json, self.log.replay())

    def _check(self, reducer: StateReducer, start: IntentRequest) -> None:
        holder = reducer.open.get(start.address)
        if holder is not None and not self._monitor.is_over(holder, self._head.read_at):
            raise lock_held_error(holder)
        if start.seen is None or reducer.versions.get(start.address, 0) == start.seen:
            return
        kind = StalePlan if reducer.moved(start.address, start.seen, start.plan) else AlreadyApplied
        raise kind(
            f"{start.address} has changed since the plan was made",
            "Plan again.",
            address=str(start.address),
        )

    def _end(self, intent: Intent, make: Callable[[EntryHeader], Entry]) -> None:
        def decide(reducer: StateReducer) -> list[Entry]:
            if reducer.open_by_id(intent.id) is None:
                other = reducer.open.get(intent.address)
                how = (
                    f"taken over by {other.holder.actor}"
                    if other
                    else "released by another command"
                )
                raise LockHeld(
                    f"the lock on {intent.address} was {how}",
                    "Changes of this command to the resource are not recorded. Plan again.",
                    address=str(intent.address),
                    code="lease-lost",
                )
            return [make(self.header())]

        self._committer.submit(AppendRequest((intent.address,), decide))
        self.leave_open(intent)

    def _intent(self, start: IntentRequest) -> Intent:
        return converted(
            start,
            Intent,
            id=_new_id(),
            holder=self._holder,
            time=self.clock.now(),
            lease_seconds=STALE_SECONDS,
        )


def _key(reducer: StateReducer, start: IntentRequest) -> str:
    """Return the key of the newest attempt at the same change, else the requested one."""
    orphans = reversed(reducer.orphaned_intents.get(start.address, ()))
    attempts = filter(None, (reducer.open.get(start.address), *orphans))
    return next((attempt.key for attempt in attempts if start.same(attempt)), start.key)


INTERVAL_SECONDS = 10.0
TICK_SECONDS = 1.0


class LeaseRenewer:
    """Context manager that renews all leases of a ledger every ``interval`` seconds.

    Calls ``lost`` from a thread if a lease was ended by others or could not be renewed in time: then its holder must
    stop. One thread renews and may hang on a dead disk, so another watches the clock.
    """

    def __init__(
        self, ledger: Ledger, lost: Callable[[], None], interval: float = INTERVAL_SECONDS
    ) -> None:
        self._ledger = ledger
        self._lost = lost
        self._interval = interval
        self._stopped = threading.Event()
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        for work in (self._renew, self._watch):
            threading.Thread(target=work, name=f"lease{work.__name__}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    @contextmanager
    def holding(self, intent: Intent) -> Iterator[Intent]:
        """Hold the lease in a block; without outcome, the intent stays open."""
        try:
            yield intent
        finally:
            self._ledger.leave_open(intent)

    def check(self) -> None:
        """Call ``lost`` once for each lease that could not be renewed in time."""
        now = self._ledger.clock.elapsed()
        expired = {
            lease.intent.id
            for lease in self._ledger.held()
            if now - lease.since >= lease.intent.lease_seconds
        }
        if expired - self._reported:
            self._reported |= expired
            self._lost()

    def _renew(self) -> None:
        pause = self._interval
        while not self._stopped.wait(pause):
            pause = self._interval
            try:
                if self._ledger.renew():
                    self._lost()
            except TrainctlError:
                pause = self._interval / 5  # _watch detects the expiry

    def _watch(self) -> None:
        while not self._stopped.wait(min(TICK_SECONDS, self._interval)):
            self.check()


def _new_id() -> str:
    import uuid  # slow to import, and reading needs none

    return str(uuid.uuid4())
