"""One append for what many threads want at once: the first one takes what waits, the others find theirs done."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainctl.base.clock import Clock
from trainctl.errors import AppendConflict, LockHeld, PermissionDenied, StateError, TrainctlError
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.entries import CreatedEntry, Entry, EntryHeader, entry_id, from_json, to_json
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import State
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog

MAX_CONFLICTS = 60
MAX_PAUSE = 0.5
"""Seconds. Together: about half a minute of being refused all the time."""

Decide = Callable[[StateReducer], Sequence[Entry]]


class AppendRequest:
    """What one thread wants to append, decided on the head; nothing, if it only looks. ``alone``: in an append of its own.

    Requests that share an address never share an append.
    """

    def __init__(
        self, addresses: Sequence[Address], decide: Decide, *, alone: bool = False
    ) -> None:
        self.addresses = frozenset(addresses)
        self.decide = decide
        self.alone = alone
        self.done = False
        self.error: TrainctlError | None = None
        self.raw: list[dict[str, Any]] = []
        self.woken = threading.Semaphore(0)
        """Given once when it is done, and once whenever its thread is to lead."""


class Committer:
    """Appends to one log, one batch at a time. One thread leads; each other one sleeps until its own is done or it is to lead."""

    def __init__(
        self, head: LogHead, redact: Redact, clock: Clock, header: Callable[[], EntryHeader]
    ) -> None:
        self._head = head
        self._redact = redact
        self._clock = clock
        self._read_header = header
        self._lock = threading.Lock()
        self._waiting: list[AppendRequest] = []
        self._leader: AppendRequest | None = None

    def submit(self, request: AppendRequest) -> None:
        """Append what the request decides, with others' if there are; ``raw`` is what was written."""
        try:
            with self._lock:
                self._waiting.append(request)
                if self._leader is None:
                    self._appoint()
            while self._is_to_lead(request):
                self._commit(self._take(request))
                self._hand_over(request)
        finally:
            self._withdraw(request)
        if request.error is not None:
            raise request.error

    def submit_alone(self, decide: Decide) -> None:
        """Append what is decided, in an append of its own and in this thread."""
        self.submit(AppendRequest((), decide, alone=True))

    def _is_to_lead(self, request: AppendRequest) -> bool:
        """Wait until another thread has done it (False), or this one is to append (True)."""
        request.woken.acquire()
        return not request.done

    def _appoint(self) -> None:
        """Wake the thread that leads next: of what has waited longest. The lock is held."""
        self._leader = next(iter(self._waiting), None)
        if self._leader is not None:
            self._leader.woken.release()

    def _hand_over(self, request: AppendRequest) -> None:
        with self._lock:
            if self._leader is request:
                self._appoint()

    def _withdraw(self, request: AppendRequest) -> None:
        """Drop the request of an interrupted thread: no other thread may append it later, or wait for it to lead."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each is not request]
        self._hand_over(request)

    def _take(self, leader: AppendRequest) -> list[AppendRequest]:
        """What waits, as far as no address is in two of them; only the leader's if it is to be alone."""
        taken: list[AppendRequest] = []
        addresses: set[Address] = set()
        with self._lock:
            left = []
            for request in self._waiting:
                if self._may_join(request, leader) and addresses.isdisjoint(request.addresses):
                    taken.append(request)
                    addresses |= request.addresses
                else:
                    left.append(request)
            self._waiting = left
        return taken

    @staticmethod
    def _may_join(request: AppendRequest, leader: AppendRequest) -> bool:
        return request is leader or not (request.alone or leader.alone)

    def _commit(self, batch: list[AppendRequest]) -> None:
        try:
            self._append(batch)
        except (StateError, LockHeld) as error:
            for request in (each for each in batch if not each.done):
                # A copy each, as its receiver may set the address on it.
                request.error, request.done = copy.copy(error), True
        finally:
            # Not done only where this thread is interrupted: the others go on without it.
            with self._lock:
                self._waiting[:0] = [request for request in batch if not request.done]
            for request in (each for each in batch if each.done):
                request.woken.release()
        self._head.snapshot_if_due()

    def _append(self, batch: list[AppendRequest]) -> None:
        self._head.catch_up()
        for refusal in range(MAX_CONFLICTS):
            for request in batch:
                self._decide(request)
            going = [request for request in batch if not request.done]
            raw = [entry for request in going for entry in request.raw]
            if not raw or self._try(raw):
                self._head.publish()
                for request in going:
                    request.done = True
                return
            self._clock.sleep(random.uniform(0, min(MAX_PAUSE, 0.002 * 2**refusal)))  # noqa: S311
            self._head.catch_up()
        raise LockHeld(
            f"too many concurrent writers of the state at {self._head.log.url}", "Try again later."
        )

    def _decide(self, request: AppendRequest) -> None:
        if request.done:
            return
        try:
            entries = request.decide(self._head.fold)
            request.raw = [redact_entry(to_json(entry), self._redact) for entry in entries]
            request.done = not request.raw
        except TrainctlError as error:
            request.error, request.done = error, True

    def _try(self, raw: list[dict[str, Any]]) -> bool:
        """Whether the batch is in the log now. False: someone else was first."""
        if not self._head.fold.lineage:
            header = self._read_header()
            raw = [redact_entry(to_json(CreatedEntry(header, header.id)), self._redact), *raw]
        entries = [from_json(each) for each in raw]
        try:
            self._head.log.append(self._head.fold.position, raw)
        except StateError as error:
            if entry_id(entries[0]) in self._head.catch_up():
                return True  # it was written, and only the answer was lost
            if isinstance(error, AppendConflict):
                return False
            raise
        self._head.add(entries)
        return True


Redact = Callable[[str], str]

_STRUCTURE = (
    "id",
    "type",
    "lineage",
    "address",
    "intent",
    "intents",
    "key",
    "plan",
    "action",
    "provider",
)
_NON_TEXT_TYPES = frozenset({int, float, bool, type(None)})
_RECORDED = ("provider", "depends_on", "key")
_text = json.JSONEncoder(ensure_ascii=False, default=dict).encode


def redact_entry(entry: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """The entry with every secret value masked. Forbidden if a name that makes up the structure contains one."""
    text = _text(entry)
    if "\\" not in text and redact(text) == text:
        # Nothing is escaped, so each string stands there as it is: none holds a secret, and one look was enough.
        return dict(json.loads(text))
    clean: dict[str, Any] = _masked(entry, redact)
    _check(entry, clean, _STRUCTURE)
    recorded = entry.get("recorded")
    if recorded is not None:
        _check(recorded, clean.get("recorded"), _RECORDED)
    return clean


def _masked(value: Any, redact: Redact) -> Any:
    # Nearly everything is of one of these very types, and asking for a type is cheaper than for a kind of it.
    kind = type(value)
    if kind is str:
        return redact(value)
    if kind in _NON_TEXT_TYPES:
        return value
    if isinstance(value, str):
        return redact(value)
    if kind is dict or isinstance(value, Mapping):
        return {redact(str(name)): _masked(each, redact) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, redact) for each in value]
    return value


def _check(before: Mapping[str, Any], after: object, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in before:
            continue
        if not isinstance(after, Mapping) or after.get(name) != before[name]:
            raise PermissionDenied(
                f"the state would contain the value of a secret in a name ({name})",
                "Rename the resource with that name, or change the secret. Nothing was written.",
                code="secret-in-name",
            )


SNAPSHOT_APPENDS = 200
"""A snapshot is due after so many appends, and half as many entries as the state has items."""
FLUSH_ENTRIES = 500
"""A command that ends takes a snapshot if so many entries were appended since the last one."""


class LogHead:
    """Where this process stands in a log. For one thread at a time: the one that leads an append."""

    def __init__(self, log: StateLog, clock: Clock) -> None:
        self.log = log
        self.fold = StateReducer()
        self.known = State()
        """The newest whole state, for threads that don't lead."""
        self.looked_at = 0.0
        """When the newest read began, on the clock that counts sleep."""
        self._clock = clock
        self._snapshot_at = 0

    def catch_up(self) -> set[str]:
        """Fold what was appended since the last look; the ids of it."""
        began = self._clock.elapsed()
        found = self.log.read(self.fold.position)
        if found.snapshot is not None or found.whole:
            start = State() if found.snapshot is None else state_from_json(found.snapshot)
            self.fold = StateReducer(start)
            self._snapshot_at = start.position
        entries = [from_json(raw) for raw in found.entries]
        self._apply(entries, found.next)
        self.looked_at = began
        return {entry_id(entry) for entry in entries}

    def add(self, entries: Iterable[Entry]) -> None:
        """Fold what this process has just appended."""
        self._apply(entries, self.fold.position + 1)

    def publish(self) -> None:
        """Let every thread see how the fold is now."""
        self.known = self.fold.state()

    def snapshot_if_due(self) -> None:
        """Take a snapshot when enough was appended; it is only a cache, so one that fails is tried again later."""
        if self.fold.position - self._snapshot_at >= SNAPSHOT_APPENDS:
            self._snapshot()

    def flush(self) -> None:
        """Take a snapshot where reading what was appended since the last one takes long, however few appends that were."""
        if self.fold.entries >= FLUSH_ENTRIES:
            self._snapshot()

    def _snapshot(self) -> None:
        fold = self.fold
        if 2 * fold.entries >= len(fold.resources) + len(fold.versions):
            with suppress(StateError):
                self.log.snapshot(fold.position, state_to_json(fold.state()))
            self._snapshot_at, fold.entries = fold.position, 0

    def _apply(self, entries: Iterable[Entry], position: int) -> None:
        for entry in entries:
            self.fold.apply(entry)
        self.fold.move_to(position)
