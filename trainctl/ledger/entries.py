"""What is in the log, and its JSON. An intent is an entry as it is; DESIGN.md lists what each means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainctl.errors import StateError
from trainctl.ledger.codec import (
    intent_from_json,
    intent_to_json,
    recorded_from_json,
    recorded_to_json,
)
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.address import Address

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every entry has: its UUID, when it was written by the writer's clock, and by whom."""

    id: str
    time: float
    who: str

    def to_json(self, kind: str) -> dict[str, Any]:
        """The fields that every entry begins with."""
        return {"id": self.id, "type": kind, "time": self.time, "who": self.who}


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
    waits: bool = False


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


def to_json(entry: Entry) -> dict[str, Any]:
    """The entry as the log has it."""
    kind, write = _WRITERS[type(entry)]
    if isinstance(entry, Intent):
        return {"type": kind, "who": entry.holder.who, **write(entry)}
    return {**entry.stamp.to_json(kind), **write(entry)}


def from_json(raw: Json) -> Entry:
    """Read an entry. StateError if it isn't one, or a newer trainctl's."""
    kind = raw.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise StateError(
            f"the state has an entry of type {kind!r}, which this trainctl does not know",
            "Install the newer trainctl that wrote it; nothing was changed.",
            code="newer-format",
        )
    try:
        return read(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is damaged: entry {raw.get('id')} ({kind}) can't be read: {error!r}",
            "Put the state back from a backup; nothing was changed.",
            code="state-damaged",
        ) from error


def _stamp(raw: Json) -> Stamp:
    return Stamp(raw["id"], float(raw["time"]), raw["who"])


def _read_outcome(raw: Json) -> Outcome:
    address, recorded = Address.parse(raw["address"]), raw["recorded"]
    return Outcome(
        _stamp(raw),
        raw["intent"],
        address,
        None if recorded is None else recorded_from_json(address, recorded),
        raw.get("action", ""),
        raw.get("plan", ""),
        raw.get("error", ""),
    )


def _write_outcome(entry: Outcome) -> dict[str, Any]:
    return {
        "intent": entry.intent,
        "address": str(entry.address),
        "action": entry.action,
        "plan": entry.plan,
        "error": entry.error,
        "recorded": None if entry.recorded is None else recorded_to_json(entry.recorded),
    }


def _read_note(raw: Json) -> Note:
    address = raw.get("address")
    return Note(_stamp(raw), raw["text"], None if address is None else Address.parse(address))


_READERS: dict[str, Callable[[Json], Entry]] = {
    "born": lambda raw: Born(_stamp(raw), raw["lineage"]),
    "intent": intent_from_json,
    "renewed": lambda raw: Renewed(_stamp(raw), tuple(raw["intents"])),
    "outcome": _read_outcome,
    "failed": lambda raw: Failed(
        _stamp(raw),
        raw["intent"],
        Address.parse(raw["address"]),
        raw["error"],
        raw.get("waits") is True,
    ),
    "released": lambda raw: Released(_stamp(raw), raw["intent"], Address.parse(raw["address"])),
    "observed": lambda raw: Observed(
        _stamp(raw), Address.parse(raw["address"]), dict(raw["outputs"])
    ),
    "note": _read_note,
    "approved": lambda raw: Approved(
        _stamp(raw),
        raw["plan"],
        {Address.parse(address): str(wanted) for address, wanted in raw["changes"].items()},
    ),
}

_WRITERS: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    Born: ("born", lambda entry: {"lineage": entry.lineage}),
    Intent: ("intent", intent_to_json),
    Renewed: ("renewed", lambda entry: {"intents": list(entry.intents)}),
    Outcome: ("outcome", _write_outcome),
    Failed: (
        "failed",
        lambda e: {
            "intent": e.intent,
            "address": str(e.address),
            "error": e.error,
            **({"waits": True} if e.waits else {}),
        },
    ),
    Released: ("released", lambda e: {"intent": e.intent, "address": str(e.address)}),
    Observed: ("observed", lambda e: {"address": str(e.address), "outputs": e.outputs}),
    Approved: (
        "approved",
        lambda e: {"plan": e.plan, "changes": {str(one): e.changes[one] for one in e.changes}},
    ),
    Note: (
        "note",
        lambda e: {"text": e.text, "address": None if e.address is None else str(e.address)},
    ),
}
