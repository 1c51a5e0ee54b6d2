"""History of changes, and past states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trainctl.errors import UsageError
from trainctl.ledger.entries import (
    CommentEntry,
    Entry,
    FailureEntry,
    OutcomeEntry,
    PushedEntry,
    RefreshEntry,
    RenamedEntry,
    UnlockEntry,
)
from trainctl.ledger.leases import open_leases
from trainctl.ledger.reducer import StateReducer, newest_run
from trainctl.ledger.state import Intent, State
from trainctl.model.address import Address
from trainctl.model.delivery import DeliveryRecord, MirroringRecord
from trainctl.model.json_codec import JsonSerializable
from trainctl.model.run import RunStatus

_LIVE = frozenset(status.value for status in RunStatus if status.live)


@dataclass(frozen=True, slots=True)
class HistoryRow(JsonSerializable):
    """One row of the history; ``serial`` is that after it, ``time`` in Unix seconds.

    ``status``: that of the run, if there is one (``started`` while it is live); else done, removed,
    failed, released, observed, commented, interrupted or in progress.
    ``deliveries`` are in the first row of the run that has them. ``plan`` is the digest of the applied plan.
    """

    serial: int
    time: float
    actor: str
    address: str | None
    action: str
    reason: str | None
    run: str | None
    status: str
    deliveries: tuple[DeliveryRecord, ...] = ()
    mirrored: MirroringRecord | None = None
    commit: str | None = None
    pipeline: str | None = None
    plan: str | None = None


def history_rows(entries: Iterable[Entry], address: Address | None = None) -> list[HistoryRow]:
    """Return the history, oldest first, optionally of one address or matrix and its earlier names."""
    reducer, rows = StateReducer(), []
    reported: set[str | None] = set()
    entries = [*entries]
    names = set() if address is None else _all_names(entries, address)
    for entry in entries:
        subject: Address | None = getattr(entry, "address", None)
        intent = reducer.open.get(subject) if subject is not None else None
        changed = reducer.apply(entry)
        if isinstance(entry, RenamedEntry) and changed:
            rows += _renamed_rows(entry, reducer, names)
        if names and (subject is None or names.isdisjoint((subject, subject.group))):
            continue
        if not changed and not isinstance(entry, CommentEntry):
            continue
        row = _row(entry, intent, reducer)
        if row is None or isinstance(entry, Intent):
            continue
        if row.deliveries and row.run in reported:
            row = replace(row, deliveries=())
        header = entry.header
        rows.append(replace(row, commit=header.commit, pipeline=header.pipeline))
        reported |= {row.run} if row.deliveries else set()
    return rows


def open_rows(state: State, address: Address | None = None) -> list[HistoryRow]:
    """Return the changes that were started and have no outcome; ``status``: interrupted or in progress."""
    return [
        HistoryRow(
            state.serial,
            lease.intent.time,
            lease.intent.holder.actor,
            str(lease.intent.address),
            lease.intent.action,
            lease.intent.reason or None,
            None,
            "interrupted" if lease.interrupted else "in progress",
            commit=lease.intent.holder.commit,
            pipeline=lease.intent.holder.pipeline,
            plan=lease.intent.plan or None,
        )
        for lease in open_leases(state)
        if address in (None, lease.intent.address, lease.intent.address.group)
    ]


def plan_outcomes(entries: Iterable[Entry], plan: str) -> dict[Address, tuple[Intent, str]]:
    """Return intent and error of the outcomes of a plan on addresses that nothing changed later."""
    reducer, found = StateReducer(), dict[Address, tuple[Intent, str]]()
    for entry in entries:
        intent = reducer.open.get(entry.address) if isinstance(entry, OutcomeEntry) else None
        if not reducer.apply(entry) or not isinstance(entry, OutcomeEntry):
            continue
        found.pop(entry.address, None)
        if intent is not None and entry.plan == plan:
            found[entry.address] = intent, entry.error
    return found


def state_at(entries: Iterable[Entry], serial: int) -> State:
    """Replay the state at a serial; raise UsageError if it doesn't exist."""
    reducer = StateReducer()
    if serial == 0:
        return reducer.state()
    for entry in entries:
        reducer.apply(entry)
        if reducer.serial == serial:
            return reducer.state()
    raise UsageError(
        f"serial {serial} is not in the state", f"Use a serial from 0 to {reducer.serial}."
    )


def _all_names(entries: Sequence[Entry], address: Address) -> set[Address]:
    names = {address}
    for entry in reversed(entries):
        if isinstance(entry, RenamedEntry):
            names |= {old for old, new in entry.addresses.items() if new in names}
    return names


def _renamed_rows(
    entry: RenamedEntry, reducer: StateReducer, names: set[Address]
) -> list[HistoryRow]:
    header = entry.header
    return [
        HistoryRow(
            reducer.serial, header.time, header.actor, str(new), "move", f"from {old}", None, "done"
        )
        for old, new in sorted(entry.addresses.items())
        if not names or not names.isdisjoint((new, new.group))
    ]


def _row(entry: Entry, intent: Intent | None, reducer: StateReducer) -> HistoryRow | None:
    action = intent.action if intent else ""
    if isinstance(entry, OutcomeEntry):
        status = "failed" if entry.error else "removed" if entry.recorded is None else "done"
        row = _with_run(_build(entry, reducer, entry.action or action, intent, status), reducer)
        fetched = entry.recorded.outputs.get("fetched") if intent and entry.recorded else None
        return replace(row, mirrored=MirroringRecord.from_json(fetched)) if fetched else row
    if isinstance(entry, FailureEntry):
        return _build(entry, reducer, action, intent, "waits" if entry.waits else "failed")
    if isinstance(entry, UnlockEntry):
        return _build(entry, reducer, "release", intent, "released")
    if isinstance(entry, RefreshEntry):
        return _with_run(_build(entry, reducer, "observe", None, "observed"), reducer)
    if isinstance(entry, PushedEntry):
        header = entry.header
        return HistoryRow(
            reducer.serial, header.time, header.actor, None, "push", None, None, "done"
        )
    if isinstance(entry, CommentEntry):
        where = None if entry.address is None else str(entry.address)
        header = entry.header
        return HistoryRow(
            reducer.serial, header.time, header.actor, where, entry.text, None, None, "commented"
        )
    return None


def _build(
    entry: OutcomeEntry | FailureEntry | UnlockEntry | RefreshEntry,
    reducer: StateReducer,
    action: str,
    intent: Intent | None,
    status: str,
) -> HistoryRow:
    header, reason = entry.header, intent.reason if intent else ""
    where = str(entry.address)
    return HistoryRow(
        reducer.serial,
        header.time,
        header.actor,
        where,
        action,
        reason or None,
        None,
        status,
        plan=(intent.plan if intent else "") or None,
    )


def _with_run(row: HistoryRow, reducer: StateReducer) -> HistoryRow:
    """Add the newest run of the resource and its status; a live one is ``started``, as it may have ended since."""
    recorded = reducer.resources.get(Address.parse(row.address or ""))
    run = newest_run(recorded.outputs) if recorded else None
    if run is None:
        return row
    status = str(run.get("status", row.status))
    return replace(
        row,
        run=str(run.get("id")),
        status="started" if status in _LIVE else status,
        deliveries=tuple(map(DeliveryRecord.from_json, run.get("deliveries") or ())),
    )
