"""Conversion of states to JSON and back, for snapshots and ``state pull``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trainctl.encryption.keys import require_plain
from trainctl.errors import StateError
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.json_codec import from_json, to_json

VERSION = 1

V = TypeVar("V")


def state_to_json(state: State) -> dict[str, Any]:
    """Convert a state to JSON, with resources sorted by address."""
    return {
        "version": VERSION,
        "lineage": state.lineage,
        "serial": state.serial,
        "position": state.position,
        "resources": _records(state.resources),
        "open_intents": [to_json(intent) for _, intent in _by_address(state.open_intents)],
        "orphaned_intents": [
            to_json(intent)
            for _, intents in _by_address(state.orphaned_intents)
            for intent in intents
        ],
        "versions": {str(address): count for address, count in _by_address(state.versions)},
        "plans": {str(address): list(plan) for address, plan in _by_address(state.plans)},
        "approved": {
            str(address): list(digests) for address, digests in _by_address(state.approved)
        },
        **({"forgotten": _records(state.forgotten)} if state.forgotten else {}),
        **({"moved_to": state.moved_to} if state.moved_to else {}),
    }


def _records(records: Mapping[Address, RecordedResource]) -> list[dict[str, Any]]:
    return [
        {"address": str(address), "version": recorded.version, **recorded_to_json(recorded)}
        for address, recorded in _by_address(records)
    ]


def _read_records(raw: Sequence[Json]) -> dict[Address, RecordedResource]:
    records = (from_json(RecordedResource, record) for record in raw)
    return {record.address: record for record in records}


def _by_address(values: Mapping[Address, V]) -> list[tuple[Address, V]]:
    return sorted(values.items(), key=lambda item: item[0].rank())


def state_from_json(raw: Json) -> State:
    """Convert JSON to a state; raise StateError if it is corrupt or too new."""
    require_plain(raw, "the state")
    version = raw.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StateError(
            f"the state was written by a newer trainctl: format {version}, this one reads {VERSION}",
            "Install the newer trainctl. Nothing was changed.",
            code="newer-format",
        )
    if version != VERSION:
        raise StateError(
            "not a state document: it has no version", "Use the output of trainctl state pull."
        )
    try:
        return _read(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is corrupt: {error!r}",
            "Restore the state from a backup. Nothing was changed.",
            code="state-corrupt",
        ) from error


def _read(raw: Json) -> State:
    orphaned_intents: dict[Address, tuple[Intent, ...]] = {}
    for intent in map(intent_from_json, raw.get("orphaned_intents", ())):
        orphaned_intents[intent.address] = (*orphaned_intents.get(intent.address, ()), intent)
    intents = map(intent_from_json, raw.get("open_intents", ()))
    return State(
        lineage=raw["lineage"],
        serial=raw["serial"],
        position=raw.get("position", 0),
        resources=_read_records(raw["resources"]),
        open_intents={intent.address: intent for intent in intents},
        versions={Address.parse(a): count for a, count in raw.get("versions", {}).items()},
        orphaned_intents=orphaned_intents,
        plans={Address.parse(a): (plan, base) for a, (plan, base) in raw.get("plans", {}).items()},
        approved={Address.parse(a): (v, plan) for a, (v, plan) in raw.get("approved", {}).items()},
        forgotten=_read_records(raw.get("forgotten", ())),
        moved_to=raw.get("moved_to", ""),
    )


Json = Mapping[str, Any]

_REPLAYED_FIELDS = ("renewals", "released", "renewed")


def intent_to_json(intent: Intent) -> dict[str, Any]:
    """Convert an intent for the log, without fields that only replaying sets."""
    return {name: value for name, value in to_json(intent).items() if name not in _REPLAYED_FIELDS}


def intent_from_json(raw: Json) -> Intent:
    """Convert the JSON form back."""
    return from_json(Intent, raw)


def recorded_to_json(recorded: RecordedResource) -> dict[str, Any]:
    """Convert a resource to JSON without address and version."""
    return {
        "provider": recorded.provider,
        "attributes": recorded.attributes,
        "outputs": recorded.outputs,
        "depends_on": [str(address) for address in recorded.depends_on],
        "lifecycle": to_json(recorded.lifecycle),
        "key": recorded.key,
    }
