"""What is in the log, and its JSON. An intent is an entry as it is; DESIGN.md lists what each means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from trainctl.errors import StateError
from trainctl.ledger.codec import intent_from_json, intent_to_json, recorded_to_json
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model import json_codec
from trainctl.model.address import Address
from trainctl.model.json_codec import OMIT_EMPTY

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """What every entry has: its UUID, when it was written by the writer's clock, and by whom."""

    id: str
    time: float
    actor: str


@dataclass(frozen=True, slots=True)
class CreatedEntry:
    """The first entry of a log: gives it its lineage."""

    header: EntryHeader
    lineage: str


@dataclass(frozen=True, slots=True)
class LeaseRenewedEntry:
    """Leases that go on."""

    header: EntryHeader
    intents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """What came of an intent: the whole record, or None as it is gone. An empty ``intent`` is a change by hand.

    ``error`` is set where something failed and still left this to record.
    """

    header: EntryHeader
    intent: str
    address: Address
    recorded: RecordedResource | None
    action: str = ""
    plan: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """An effect that failed; what it may have left is known by the intent's key. One that ``waits`` was put off and has left nothing."""

    header: EntryHeader
    intent: str
    address: Address
    error: str
    waits: bool = field(default=False, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class UnlockEntry:
    """A lease ended by hand."""

    header: EntryHeader
    intent: str
    address: Address


@dataclass(frozen=True, slots=True)
class RefreshEntry:
    """Outputs that changed by themselves."""

    header: EntryHeader
    address: Address
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CommentEntry:
    """A remark, for the history only."""

    header: EntryHeader
    text: str
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class ApprovalEntry:
    """Changes that were agreed to, by address, each as the digest of the values that it makes so."""

    header: EntryHeader
    plan: str
    changes: Mapping[Address, str]


Entry: TypeAlias = (
    Intent
    | CreatedEntry
    | LeaseRenewedEntry
    | OutcomeEntry
    | FailureEntry
    | UnlockEntry
    | RefreshEntry
    | CommentEntry
    | ApprovalEntry
)


def entry_id(entry: Entry) -> str:
    """The entry's UUID."""
    return entry.id if isinstance(entry, Intent) else entry.header.id


_KINDS: Mapping[str, type] = {
    "created": CreatedEntry,
    "lease_renewed": LeaseRenewedEntry,
    "outcome": OutcomeEntry,
    "failed": FailureEntry,
    "unlocked": UnlockEntry,
    "refreshed": RefreshEntry,
    "comment": CommentEntry,
    "approved": ApprovalEntry,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(entry: Entry) -> dict[str, Any]:
    """The entry as the log has it."""
    if isinstance(entry, Intent):
        return {"type": "intent", "actor": entry.holder.actor, **intent_to_json(entry)}
    form = json_codec.to_json(entry)
    if isinstance(entry, OutcomeEntry) and entry.recorded is not None:
        form["recorded"] = recorded_to_json(entry.recorded)
    return {"type": _NAMES[type(entry)], **form.pop("header"), **form}


def from_json(raw: Json) -> Entry:
    """Read an entry. StateError if it isn't one, or a newer trainctl's."""
    kind = str(raw.get("type"))
    if kind != "intent" and kind not in _KINDS:
        raise StateError(
            f"the state has an entry of unknown type {raw.get('type')!r}",
            "Install the newer trainctl that wrote it. Nothing was changed.",
            code="newer-format",
        )
    try:
        if kind == "intent":
            return intent_from_json(raw)
        recorded = raw.get("recorded")
        if recorded is not None:
            raw = {**raw, "recorded": {**recorded, "address": raw["address"]}}
        return cast(Entry, json_codec.from_json(_KINDS[kind], {**raw, "header": raw}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is corrupt: cannot read entry {raw.get('id')} ({kind}): {error!r}",
            "Restore the state from a backup. Nothing was changed.",
            code="state-corrupt",
        ) from error
