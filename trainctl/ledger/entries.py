"""Entries of the log, including ``Intent``, and their JSON; see DESIGN.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.encryption.keys import require_plain
from trainctl.errors import StateError
from trainctl.ledger.codec import (
    intent_from_json,
    intent_to_json,
    recorded_from_json,
    recorded_to_json,
)
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model import json_codec
from trainctl.model.address import Address
from trainctl.model.json_codec import OMIT_EMPTY

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """UUID, time by the writer's clock (Unix seconds), and writer of an entry; see ``leases.py``."""

    id: str
    time: float
    actor: str
    commit: str | None = field(default=None, metadata=OMIT_EMPTY)
    pipeline: str | None = field(default=None, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class CreatedEntry:
    """The first entry of a log."""

    header: EntryHeader
    lineage: str


@dataclass(frozen=True, slots=True)
class LeaseRenewedEntry:
    """Renewal of leases."""

    header: EntryHeader
    intents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """Outcome of an intent: the new record, or None after a removal.

    Without ``intent`` it is a change of the record only: of a plan if it has the ``digest`` of the change, else by hand.
    ``error`` is set if the change failed but has something to record.
    """

    header: EntryHeader
    intent: str
    address: Address
    recorded: RecordedResource | None
    action: str = ""
    plan: str = ""
    error: str = ""
    reason: str | None = field(default=None, metadata=OMIT_EMPTY)
    digest: str | None = field(default=None, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """Failure of an intent. ``waits``: it was deferred and left nothing behind."""

    header: EntryHeader
    intent: str
    address: Address
    error: str
    waits: bool = field(default=False, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class UnlockEntry:
    """A lock removed by a user."""

    header: EntryHeader
    intent: str
    address: Address


@dataclass(frozen=True, slots=True)
class RefreshEntry:
    """Outputs that changed without an apply."""

    header: EntryHeader
    address: Address
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CommentEntry:
    """A comment in the history."""

    header: EntryHeader
    text: str
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class ApprovalEntry:
    """Approved changes: digests of their new values by address."""

    header: EntryHeader
    plan: str
    changes: Mapping[Address, str]


@dataclass(frozen=True, slots=True)
class MovedEntry:
    """A move of the complete state to the URL ``to``; empty: the move was aborted."""

    header: EntryHeader
    to: str


@dataclass(frozen=True, slots=True)
class RenamedEntry:
    """New addresses of resources, all at once."""

    header: EntryHeader
    addresses: Mapping[Address, Address]
    plan: str = ""


@dataclass(frozen=True, slots=True)
class PushedEntry:
    """A state by hand, as JSON, which replaces the current one."""

    header: EntryHeader
    state: Mapping[str, Any]


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
    | MovedEntry
    | RenamedEntry
    | PushedEntry
)


def entry_id(entry: Entry) -> str:
    """Return the UUID of an entry."""
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
    "moved": MovedEntry,
    "renamed": RenamedEntry,
    "pushed": PushedEntry,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(entry: Entry) -> dict[str, Any]:
    """Convert an entry to JSON."""
    if isinstance(entry, Intent):
        return {"type": "intent", "actor": entry.holder.actor, **intent_to_json(entry)}
    kind = _NAMES[type(entry)]
    recorded = None
    if isinstance(entry, OutcomeEntry) and entry.recorded is not None:
        recorded = recorded_to_json(entry.recorded)
        entry = replace(entry, recorded=None)
    form = json_codec.to_json(entry)
    if recorded is not None:
        form["recorded"] = recorded
    return {"type": kind, **form.pop("header"), **form}


def from_json(raw: Json) -> Entry:
    """Convert JSON to an entry; raise StateError if it is corrupt or too new."""
    kind = str(raw.get("type"))
    require_plain(raw, "the state")
    if kind != "intent" and kind not in _KINDS:
        raise StateError(
            f"the state has an entry of unknown type {raw.get('type')!r}",
            "Install the newer trainctl that wrote it. Nothing was changed.",
            code="newer-format",
        )
    try:
        if kind == "intent":
            return intent_from_json(raw)
        form, recorded = {**raw, "header": raw}, raw.get("recorded")
        if recorded is not None:
            form["recorded"] = None
        entry: Entry = json_codec.from_json(_KINDS[kind], form)
        if isinstance(entry, OutcomeEntry) and recorded is not None:
            entry = replace(entry, recorded=recorded_from_json(recorded, entry.address))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is corrupt: cannot read entry {raw.get('id')} ({kind}): {error!r}",
            "Restore the state from a backup. Nothing was changed.",
            code="state-corrupt",
        ) from error
    return entry
