"""History of changes, and past states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, replace
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
from trainctl.ledger.reducer import StateReducer, merge_outputs, newest_run
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind
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
    names = set() if address is None else {str(address)}
    for entry in reversed(entries) if names else ():
        if isinstance(entry, RenamedEntry):  # also the earlier names of the address
            names |= {str(old) for old, new in entry.addresses.items() if str(new) in names}
    for entry in entries:
        subject: Address | None = getattr(entry, "address", None)
        intent = reducer.open.get(subject) if subject is not None else None
        if not reducer.apply(entry) and not isinstance(entry, CommentEntry):
            continue
        for row in _rows(entry, intent, reducer):
            shown = row.address or ""
            if names and names.isdisjoint((shown, shown.partition("[")[0])):
                continue
            rows.append(replace(row, deliveries=()) if row.run in reported else row)
            reported |= {row.run} if row.deliveries else set()
    return rows


def open_rows(state: State, address: Address | None = None) -> list[HistoryRow]:
    """Return the changes that were started and have no outcome; ``status``: interrupted or in progress."""
    return [
        HistoryRow(
            serial=state.serial,
            time=lease.intent.time,
            actor=lease.intent.holder.actor,
            address=str(lease.intent.address),
            action=lease.intent.action,
            reason=lease.intent.reason or None,
            run=None,
            status="interrupted" if lease.interrupted else "in progress",
            commit=lease.intent.holder.commit,
            pipeline=lease.intent.holder.pipeline,
            plan=lease.intent.plan or None,
        )
        for lease in open_leases(state)
        if address in (None, lease.intent.address, lease.intent.address.group)
    ]


def plan_outcomes(
    entries: Iterable[Entry], plan: str
) -> dict[Address, tuple[str, Mapping[str, Any] | None]]:
    """Return the digests of a plan's changes with an outcome, of addresses that nothing changed later.

    Failed changes have their attributes, too.
    """
    reducer, found = StateReducer(), dict[Address, tuple[str, Mapping[str, Any] | None]]()
    for entry in entries:
        intent = reducer.open.get(entry.address) if isinstance(entry, OutcomeEntry) else None
        if not reducer.apply(entry) or not isinstance(entry, OutcomeEntry):
            continue
        found.pop(entry.address, None)
        digest = entry.digest if intent is None else str(intent.inputs.get("digest"))
        if digest and entry.plan == plan:
            found[entry.address] = digest, intent.attributes if intent and entry.error else None
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


def removed_resources(entries: Iterable[Entry]) -> State:
    """Replay a state of the jobs that were removed, with all of their runs, and of all clusters there were."""
    reducer, removed = StateReducer(), dict[Address, RecordedResource]()
    for entry in entries:
        removes = isinstance(entry, OutcomeEntry) and entry.recorded is None
        before = {**reducer.forgotten, **reducer.resources} if removes else {}
        reducer.apply(entry)
        for address in before.keys() - reducer.forgotten.keys() - reducer.resources.keys():
            earlier = removed.get(address, before[address])
            outputs = merge_outputs(earlier.outputs, before[address].outputs)
            removed[address] = replace(before[address], outputs=outputs)
    present = {a: item for a, item in reducer.resources.items() if a.kind is not Kind.JOB}
    return replace(reducer.state(), resources={**removed, **present}, forgotten={})


def _rows(entry: Entry, intent: Intent | None, reducer: StateReducer) -> list[HistoryRow]:
    """Return the rows of an entry: one for each address that it renames, else one or none."""
    match entry:
        case RenamedEntry():
            moves = sorted(entry.addresses.items())
            build = partial(_build, entry, reducer)
            return [build(new, "move", None, "done", f"from {old}") for old, new in moves]
        case PushedEntry():
            return [_build(entry, reducer, None, "push", None, "done")]
        case CommentEntry():
            return [_build(entry, reducer, entry.address, entry.text, None, "commented")]
        case RefreshEntry():
            row = _build(entry, reducer, entry.address, "observe", None, "observed")
            return [_with_run(row, reducer)]
        case UnlockEntry():
            return [_build(entry, reducer, entry.address, "release", intent, "released")]
        case FailureEntry():
            status = "waits" if entry.waits else "failed"
            action = intent.action if intent else ""
            return [_build(entry, reducer, entry.address, action, intent, status)]
        case OutcomeEntry():
            status = "failed" if entry.error else "removed" if entry.recorded is None else "done"
            action = entry.action or (intent.action if intent else "")
            row = _build(entry, reducer, entry.address, action, intent, status, entry.reason or "")
            if entry.digest:
                row = replace(row, plan=entry.plan)
            fetched = entry.recorded.outputs.get("fetched") if intent and entry.recorded else None
            mirrored = MirroringRecord.from_json(fetched) if fetched else None
            return [replace(_with_run(row, reducer), mirrored=mirrored)]
    return []


def _build(
    entry: Any,
    reducer: StateReducer,
    address: Address | None,
    action: str,
    intent: Intent | None,
    status: str,
    reason: str = "",
) -> HistoryRow:
    header = entry.header
    return HistoryRow(
        serial=reducer.serial,
        time=header.time,
        actor=header.actor,
        address=None if address is None else str(address),
        action=action,
        reason=(intent.reason if intent else reason) or None,
        run=None,
        status=status,
        commit=header.commit,
        pipeline=header.pipeline,
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
