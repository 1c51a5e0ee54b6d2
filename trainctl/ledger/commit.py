"""Batched appends: one thread writes the entries of all others."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainctl.base.clock import Clock
from trainctl.errors import (
    AppendConflict,
    LockHeld,
    PermissionDenied,
    StalePlan,
    StateError,
    StateMoved,
    TrainctlError,
)
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.entries import CreatedEntry, Entry, EntryHeader, entry_id, from_json, to_json
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import State
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog

MAX_CONFLICTS = 60
MAX_PAUSE = 0.5
"""Seconds between retries; all retries take about half a minute."""

Decide = Callable[[StateReducer], Sequence[Entry]]


class AppendRequest:
    """Request to append the entries that ``decide`` returns, possibly none.

    ``alone``: not batched with others. Requests with a common address are never batched. ``even_moved``: also if the
    state has moved to another place.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        decide: Decide,
        *,
        alone: bool = False,
        even_moved: bool = False,
    ) -> None:
        self.addresses = frozenset(addresses)
        self.decide = decide
        self.alone = alone
        self.even_moved = even_moved
        self.done = False
        self.error: BaseException | None = None
        self.raw: list[dict[str, Any]] = []
        self.ended = threading.Event()
        """Set when the request is done."""


class Committer:
    """Appends requests in batches, in a thread that runs while any wait."""

    def __init__(
        self, head: LogHead, redact: Redact, clock: Clock, header: Callable[[], EntryHeader]
    ) -> None:
        self._head = head
        self._redact = redact
        self._clock = clock
        self._make_header = header
        self._lock = threading.Lock()
        self._waiting: list[AppendRequest] = []
        self._writes = False

    def submit(self, request: AppendRequest) -> None:
        """Append the entries of the request, batched with others; sets ``raw``."""
        try:
            with self._lock:
                self._waiting.append(request)
                if not self._writes:
                    threading.Thread(target=self._write, name="ledger", daemon=True).start()
                    self._writes = True
            request.ended.wait()
        except BaseException:  # interrupted: the thread may have taken it, and appends it
            with self._lock:
                self._waiting = [waiting for waiting in self._waiting if waiting is not request]
            raise
        if request.error is not None:
            raise copy.copy(request.error)  # a copy each, because receivers may set the address

    def submit_alone(self, decide: Decide) -> None:
        """Append the decided entries in a batch of their own."""
        self.submit(AppendRequest((), decide, alone=True))

    def _write(self) -> None:
        while batch := self._take():
            try:
                self._append(batch)
                self._head.snapshot_if_due()  # before the threads continue, as the process may end
            except BaseException as error:  # noqa: BLE001 (raised in the threads that wait)
                for request in batch:
                    if not request.done:
                        request.error = error
            for request in batch:
                request.ended.set()

    def _take(self) -> list[AppendRequest]:
        """Take waiting requests with disjoint addresses, ``alone`` requests singly; none: the thread ends."""
        batch: list[AppendRequest] = []
        addresses: set[Address] = set()
        with self._lock:
            remaining = []
            for request in self._waiting:
                may_join = not batch or not (request.alone or batch[0].alone)
                if may_join and addresses.isdisjoint(request.addresses):
                    batch.append(request)
                    addresses |= request.addresses
                else:
                    remaining.append(request)
            self._waiting, self._writes = remaining, bool(batch)
        return batch

    def _append(self, batch: list[AppendRequest]) -> None:
        self._decide_all(batch)
        for attempt in range(MAX_CONFLICTS):
            pending = [request for request in batch if not request.done]
            raw = [entry for request in pending for entry in request.raw]
            if not raw or self._try(raw):
                self._head.publish()
                for request in pending:
                    request.done = True
                return
            self._clock.sleep(random.uniform(0, min(MAX_PAUSE, 0.002 * 2**attempt)))  # noqa: S311
            self._head.catch_up()
            for request in batch:
                self._decide(request)
        raise LockHeld(
            f"too many concurrent writers of the state at {self._head.log.url}", "Try again later."
        )

    def _decide_all(self, batch: list[AppendRequest]) -> None:
        """Decide on the state as last read, or read first if that doesn't suffice.

        Entries decided on an older state are refused when they are appended; errors and queries need the newest one.
        """
        if self._head.was_read:
            for request in batch:
                self._decide(request)
            if not any(request.done for request in batch):
                return
        for request in batch:
            request.error, request.done = None, False
        self._head.catch_up()
        for request in batch:
            self._decide(request)

    def _decide(self, request: AppendRequest) -> None:
        if request.done:
            return
        try:
            moved_to = self._head.reducer.moved_to
            if moved_to and not request.even_moved:
                raise moved_error(moved_to)
            entries = request.decide(self._head.reducer)
            request.raw = redact_entries([to_json(entry) for entry in entries], self._redact)
            request.done = not request.raw
        except TrainctlError as error:
            request.error, request.done = error, True

    def _try(self, raw: list[dict[str, Any]]) -> bool:
        """Append the batch; return False if another process was first."""
        if not self._head.reducer.lineage and raw[0]["type"] != "created":
            header = self._make_header()
            created = CreatedEntry(header, self._head.lineage or header.id)
            raw = [*redact_entries([to_json(created)], self._redact), *raw]
        entries = list(map(from_json, raw))
        position = self._head.reducer.position
        try:
            self._head.log.append(position, raw)
        except AppendConflict:
            return False
        except StateError:  # unknown: the response may be lost
            if entry_id(entries[0]) in self._head.catch_up():
                return True
            if self._head.reducer.position == position:
                raise
            # Others appended after this position, and may have pruned it: does it have the batch?
            try:
                self._head.log.append(position, raw)
            except AppendConflict:
                return False
            return True
        self._head.add(entries)
        return True


def moved_error(to: str) -> StateMoved:
    """Return the error of commands on a place that the state moved away from."""
    return StateMoved(
        f"the state moved to {to}",
        f"Write in the manifest: state: {{url: {to}}}\nIf the move was interrupted, run it again: trainctl state migrate URL; to undo it, use --abort.",
    )


Redact = Callable[[str], str]

_STRUCTURE = (
    *("id", "type", "lineage", "address", "intent", "intents"),
    *("key", "plan", "action", "provider"),
)
_NON_TEXT_TYPES = frozenset({int, float, bool, type(None)})
_RECORDED = ("provider", "depends_on", "key")
_text = json.JSONEncoder(ensure_ascii=False, default=dict).encode


def redact_entries(entries: Sequence[Mapping[str, Any]], redact: Redact) -> list[dict[str, Any]]:
    """Mask secrets in entries; raise PermissionDenied for secrets in names."""
    text = _text(entries)
    if "\\" not in text and redact(text) == text:
        # Without escapes the text contains all strings literally, so no secret is in any of them.
        return list(json.loads(text))
    if len(entries) == 1:
        return [_redact_entry(entries[0], redact)]
    return [clean for entry in entries for clean in redact_entries([entry], redact)]


def _redact_entry(entry: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    clean: dict[str, Any] = _masked(entry, redact)
    _check_unchanged(entry, clean, _STRUCTURE)
    recorded = entry.get("recorded")
    if recorded is not None:
        _check_unchanged(recorded, clean.get("recorded"), _RECORDED)
    return clean


def _masked(value: Any, redact: Redact) -> Any:
    kind = type(value)  # exact types first: faster than isinstance
    if kind is str:
        return redact(value)
    if kind in _NON_TEXT_TYPES:
        return value
    if isinstance(value, str):
        return redact(value)
    if kind is dict or isinstance(value, Mapping):
        return {redact(str(name)): _masked(item, redact) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, redact) for item in value]
    return value


def _check_unchanged(before: Mapping[str, Any], after: object, names: tuple[str, ...]) -> None:
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
"""Appends between snapshots; the entries must also be half as many as the items of the state."""
MAX_APPENDS = 2000
"""Most appends between snapshots."""
MAX_ENTRIES = 5000
"""Most entries since the last snapshot when a command ends."""
FLUSH_ENTRIES = 500
"""Entries since the last snapshot from which on a command takes one when it ends."""


class LogHead:
    """Position in a log and the state there; only for the thread that writes."""

    def __init__(self, log: StateLog, clock: Clock) -> None:
        self.log = log
        self.reducer = StateReducer()
        self.lineage = ""
        """The only lineage that the state may have, or is created with; empty: any."""
        self.known = State()
        """The newest complete state, for all threads."""
        self.read_at = 0.0
        """Start of the newest read by ``clock.elapsed()``, which counts sleep."""
        self.was_read = False
        self.has_appended = False
        self._clock = clock
        self._snapshot_at = 0

    def catch_up(self) -> set[str]:
        """Read and apply new entries; return their ids. StalePlan if the lineage is not the expected one."""
        started = self._clock.elapsed()
        new = self.log.read(self.reducer.position)
        if new.snapshot is not None or new.is_full_state:
            start = State() if new.snapshot is None else state_from_json(new.snapshot)
            self.reducer = StateReducer(start)
            self._snapshot_at = start.position
        entries = list(map(from_json, new.entries))
        self._apply(entries, new.next)
        self.read_at, self.was_read = started, True
        found = self.reducer.lineage
        if self.lineage and found and found != self.lineage:
            raise StalePlan(
                f"the state at {self.log.url} has the lineage {found}, but the plan is for {self.lineage}",
                "The state was created by another command, or again. Plan again.",
                code="plan-for-another-state",
            )
        return set(map(entry_id, entries))

    def add(self, entries: Iterable[Entry]) -> None:
        """Apply entries that this process has appended."""
        self.has_appended = True
        self._apply(entries, self.reducer.position + 1)

    def publish(self) -> None:
        """Publish the current state to all threads."""
        self.known = self.reducer.state()

    def snapshot_if_due(self) -> None:
        """Take a snapshot after enough appends, some of this process; failures are ignored, it is only a cache."""
        appends = self.reducer.position - self._snapshot_at
        if self.has_appended and appends >= SNAPSHOT_APPENDS:
            self._snapshot(at_any_size=appends >= MAX_APPENDS)

    def flush(self) -> None:
        """Take a snapshot if replaying the entries since the last one takes long."""
        if self.reducer.entries >= FLUSH_ENTRIES:
            self._snapshot(at_any_size=self.reducer.entries >= MAX_ENTRIES)

    def _snapshot(self, *, at_any_size: bool = False) -> None:
        reducer = self.reducer
        if at_any_size or 2 * reducer.entries >= len(reducer.resources) + len(reducer.versions):
            with suppress(StateError):
                self.log.snapshot(reducer.position, state_to_json(reducer.state(), compact=True))
            self._snapshot_at, reducer.entries = reducer.position, 0

    def _apply(self, entries: Iterable[Entry], position: int) -> None:
        for entry in entries:
            self.reducer.apply(entry)
        self.reducer.move_to(position)
