"""The log as rows for people, and states of the past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainctl.errors import UsageError
from trainctl.ledger.entries import Entry, Failed, Note, Observed, Outcome, Released
from trainctl.ledger.fold import Fold, newest_run
from trainctl.ledger.state import Intent, State
from trainctl.model.address import Address
from trainctl.model.delivery import Delivered, Mirrored
from trainctl.model.json_form import JsonForm


@dataclass(frozen=True, slots=True)
class Row(JsonForm):
    """One line of the history. ``serial`` is the state's after it, ``time`` Unix seconds, ``run`` a run's id.

    ``status``: a run's status where there is one; else done, removed, failed, released, observed or noted.
    ``deliveries`` are what was brought to the run's nodes, in the first line that knows of it; ``mirrored`` is what mirroring weights took.
    """

    serial: int
    time: float
    who: str
    address: str | None
    action: str
    reason: str | None
    run: str | None
    status: str
    deliveries: tuple[Delivered, ...] = ()
    mirrored: Mirrored | None = None


def rows(entries: Iterable[Entry], address: Address | None = None) -> list[Row]:
    """What happened, the oldest first; of one address if it is given, and of one of many also by what they have in common."""
    fold, found = Fold(), []
    reported: set[str | None] = set()
    for entry in entries:
        about = getattr(entry, "address", None)
        intent = fold.open.get(about) if about is not None else None
        changed = fold.apply(entry)
        if (address is None or _is_of(about, address)) and (changed or isinstance(entry, Note)):
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
    fold = Fold()
    if serial == 0:
        return fold.state()
    for entry in entries:
        fold.apply(entry)
        if fold.serial == serial:
            return fold.state()
    raise UsageError(
        f"the state has no serial {serial}", f"Serials run from 0 to {fold.serial} by now."
    )


def _row(entry: Entry, intent: Intent | None, fold: Fold) -> Row | None:
    action = intent.action if intent else ""
    if isinstance(entry, Outcome):
        status = "failed" if entry.error else "removed" if entry.recorded is None else "done"
        row = _with_run(_about(entry, fold, entry.action or action, intent, status), fold)
        fetched = entry.recorded.outputs.get("fetched") if intent and entry.recorded else None
        return replace(row, mirrored=Mirrored.from_json(fetched)) if fetched else row
    if isinstance(entry, Failed):
        return _about(entry, fold, action, intent, "waits" if entry.waits else "failed")
    if isinstance(entry, Released):
        return _about(entry, fold, "release", intent, "released")
    if isinstance(entry, Observed):
        return _with_run(_about(entry, fold, "observe", None, "observed"), fold)
    if isinstance(entry, Note):
        where = None if entry.address is None else str(entry.address)
        stamp = entry.stamp
        return Row(fold.serial, stamp.time, stamp.who, where, entry.text, None, None, "noted")
    return None


def _about(
    entry: Outcome | Failed | Released | Observed,
    fold: Fold,
    action: str,
    intent: Intent | None,
    status: str,
) -> Row:
    stamp, reason = entry.stamp, intent.reason if intent else ""
    where = str(entry.address)
    return Row(fold.serial, stamp.time, stamp.who, where, action, reason or None, None, status)


def _with_run(row: Row, fold: Fold) -> Row:
    """The row with the newest run of the resource it is about, and that run's status."""
    recorded = fold.resources.get(Address.parse(row.address or ""))
    run = newest_run(recorded.outputs) if recorded else None
    if run is None:
        return row
    return replace(
        row,
        run=str(run.get("id")),
        status=str(run.get("status", row.status)),
        deliveries=tuple(Delivered.from_json(one) for one in run.get("deliveries") or ()),
    )
