"""The log as rows for people, and states of the past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainctl.errors import UsageError
from trainctl.ledger.entries import (
    CommentEntry,
    Entry,
    FailureEntry,
    OutcomeEntry,
    RefreshEntry,
    UnlockEntry,
)
from trainctl.ledger.reducer import StateReducer, newest_run
from trainctl.ledger.state import Intent, State
from trainctl.model.address import Address
from trainctl.model.delivery import DeliveryRecord, MirroringRecord
from trainctl.model.json_codec import JsonSerializable


@dataclass(frozen=True, slots=True)
class HistoryRow(JsonSerializable):
    """One line of the history. ``serial`` is the state's after it, ``time`` Unix seconds, ``run`` a run's id.

    ``status``: a run's status where there is one; else done, removed, failed, released, observed or commented.
    ``deliveries`` are what was brought to the run's nodes, in the first line that knows of it; ``mirrored`` is what mirroring weights took.
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


def history_rows(entries: Iterable[Entry], address: Address | None = None) -> list[HistoryRow]:
    """What happened, the oldest first; of one address if it is given, and of one of many also by what they have in common."""
    fold, found = StateReducer(), []
    reported: set[str | None] = set()
    for entry in entries:
        about = getattr(entry, "address", None)
        intent = fold.open.get(about) if about is not None else None
        changed = fold.apply(entry)
        if (address is None or _is_of(about, address)) and (
            changed or isinstance(entry, CommentEntry)
        ):
            row = _row(entry, intent, fold)
            if row is not None and row.deliveries and row.run in reported:
                row = replace(row, deliveries=())
            if row is not None:
                found.append(row)
                reported |= {row.run} if row.deliveries else set()
    return found


def _is_of(about: Address | None, address: Address) -> bool:
    return about is not None and address in (about, about.group)


def state_at(entries: Iterable[Entry], serial: int) -> State:
    """The state when that serial was reached."""
    fold = StateReducer()
    if serial == 0:
        return fold.state()
    for entry in entries:
        fold.apply(entry)
        if fold.serial == serial:
            return fold.state()
    raise UsageError(
        f"serial {serial} is not in the state", f"Use a serial from 0 to {fold.serial}."
    )


def _row(entry: Entry, intent: Intent | None, fold: StateReducer) -> HistoryRow | None:
    action = intent.action if intent else ""
    if isinstance(entry, OutcomeEntry):
        status = "failed" if entry.error else "removed" if entry.recorded is None else "done"
        row = _with_run(_about(entry, fold, entry.action or action, intent, status), fold)
        fetched = entry.recorded.outputs.get("fetched") if intent and entry.recorded else None
        return replace(row, mirrored=MirroringRecord.from_json(fetched)) if fetched else row
    if isinstance(entry, FailureEntry):
        return _about(entry, fold, action, intent, "waits" if entry.waits else "failed")
    if isinstance(entry, UnlockEntry):
        return _about(entry, fold, "release", intent, "released")
    if isinstance(entry, RefreshEntry):
        return _with_run(_about(entry, fold, "observe", None, "observed"), fold)
    if isinstance(entry, CommentEntry):
        where = None if entry.address is None else str(entry.address)
        header = entry.header
        return HistoryRow(
            fold.serial, header.time, header.actor, where, entry.text, None, None, "commented"
        )
    return None


def _about(
    entry: OutcomeEntry | FailureEntry | UnlockEntry | RefreshEntry,
    fold: StateReducer,
    action: str,
    intent: Intent | None,
    status: str,
) -> HistoryRow:
    header, reason = entry.header, intent.reason if intent else ""
    where = str(entry.address)
    return HistoryRow(
        fold.serial, header.time, header.actor, where, action, reason or None, None, status
    )


def _with_run(row: HistoryRow, fold: StateReducer) -> HistoryRow:
    """The row with the newest run of the resource it is about, and that run's status."""
    recorded = fold.resources.get(Address.parse(row.address or ""))
    run = newest_run(recorded.outputs) if recorded else None
    if run is None:
        return row
    return replace(
        row,
        run=str(run.get("id")),
        status=str(run.get("status", row.status)),
        deliveries=tuple(
            DeliveryRecord.from_json(delivery) for delivery in run.get("deliveries") or ()
        ),
    )
