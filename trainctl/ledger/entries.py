"""What is in the log, and its JSON. An intent is an entry as it is; DESIGN.md lists what each means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from trainctl.errors import StateError
from trainctl.ledger.codec import intent_from_json, intent_to_json, recorded_to_json
from trainctl.ledger.state import Intent, Recorded
from trainctl.model import json_form
from trainctl.model.address import Address
from trainctl.model.json_form import OMIT_EMPTY

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every entry has: its UUID, when it was written by the writer's clock, and by whom."""

    id: str
    time: float
    who: str


@dataclass(frozen=True, slots=True)
class Born:
    """The first entry of a log: gives it its lineage."""

    stamp: Stamp
    lineage: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """Leases that go on."""

    stamp: Stamp
    intents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an intent: the whole record, or None as it is gone. An empty ``intent`` is a change by hand.

    ``error`` is set where something failed and still left this to record.
    """

    stamp: Stamp
    intent: str
    address: Address
    recorded: Recorded | None
    action: str = ""
    plan: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An effect that failed; what it may have left is known by the intent's key. One that ``waits`` was put off and has left nothing."""

    stamp: Stamp
    intent: str
    address: Address
    error: str
    waits: bool = field(default=False, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class Released:
    """A lease ended by hand."""

    stamp: Stamp
    intent: str
    address: Address


@dataclass(frozen=True, slots=True)
class Observed:
    """Outputs that changed by themselves."""

    stamp: Stamp
    address: Address
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Note:
    """A remark, for the history only."""

    stamp: Stamp
    text: str
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Approved:
    """Changes that were agreed to, by address, each as the digest of the values that it makes so."""

    stamp: Stamp
    plan: str
    changes: Mapping[Address, str]


Entry: TypeAlias = (
    Intent | Born | Renewed | Outcome | Failed | Released | Observed | Note | Approved
)


def entry_id(entry: Entry) -> str:
    """The entry's UUID."""
    return entry.id if isinstance(entry, Intent) else entry.stamp.id


_KINDS: Mapping[str, type] = {
    "born": Born,
    "renewed": Renewed,
    "outcome": Outcome,
    "failed": Failed,
    "released": Released,
    "observed": Observed,
    "note": Note,
    "approved": Approved,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(entry: Entry) -> dict[str, Any]:
    """The entry as the log has it."""
    if isinstance(entry, Intent):
        return {"type": "intent", "who": entry.holder.who, **intent_to_json(entry)}
    form = json_form.to_json(entry)
    if isinstance(entry, Outcome) and entry.recorded is not None:
        form["recorded"] = recorded_to_json(entry.recorded)
    return {"type": _NAMES[type(entry)], **form.pop("stamp"), **form}


def from_json(raw: Json) -> Entry:
    """Read an entry. StateError if it isn't one, or a newer trainctl's."""
    kind = str(raw.get("type"))
    if kind != "intent" and kind not in _KINDS:
        raise StateError(
            f"the state has an entry of type {raw.get('type')!r}, which this trainctl does not know",
            "Install the newer trainctl that wrote it; nothing was changed.",
            code="newer-format",
        )
    try:
        if kind == "intent":
            return intent_from_json(raw)
        recorded = raw.get("recorded")
        if recorded is not None:
            raw = {**raw, "recorded": {**recorded, "address": raw["address"]}}
        return cast(Entry, json_form.from_json(_KINDS[kind], {**raw, "stamp": raw}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is damaged: entry {raw.get('id')} ({kind}) can't be read: {error!r}",
            "Put the state back from a backup; nothing was changed.",
            code="state-damaged",
        ) from error
