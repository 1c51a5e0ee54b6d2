"""Conversion of states to JSON and back, for snapshots and ``state pull``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from trainctl.base.lazy_dataclass import replace
from trainctl.encryption.keys import require_plain
from trainctl.errors import StateError
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.json_codec import from_json, to_json
from trainctl.model.json_text import JsonText, decoded, json_text
from trainctl.model.specs.checks import DEFAULT_LIFECYCLE, JobLifecycle

VERSION = 1

V = TypeVar("V")


def state_to_json(state: State, *, compact: bool = False) -> dict[str, Any]:
    """Convert a state to JSON, with resources sorted by address.

    ``compact``, for snapshots: attributes are text, which is decoded when a value is needed.
    """
    return {
        "version": VERSION,
        "lineage": state.lineage,
        "serial": state.serial,
        "position": state.position,
        "resources": _records(state.resources, compact=compact),
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


def _records(
    records: Mapping[Address, RecordedResource], *, compact: bool = False
) -> list[dict[str, Any]]:
    forms = []
    for address, recorded in _by_address(records):
        form = {"address": str(address), "version": recorded.version, **recorded_to_json(recorded)}
        if compact:
            form["attributes"] = json_text(recorded.attributes)
            if form["lifecycle"] is _DEFAULT_LIFECYCLE:
                del form["lifecycle"]
        forms.append(form)
    return forms


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
        # Most of a large state are records: their addresses, versions and plans are shared.
        addresses: dict[str, Address] = {}
        plans: dict[tuple[str, int], tuple[str, int]] = {}

        def at(text: str) -> Address:
            return addresses.get(text) or addresses.setdefault(text, Address.parse(text))

        open_intents = [intent_from_json(intent) for intent in raw.get("open_intents", ())]
        orphans: dict[Address, tuple[Intent, ...]] = {}
        for each in raw.get("orphaned_intents", ()):
            orphan = intent_from_json(each)
            orphans[orphan.address] = (*orphans.get(orphan.address, ()), orphan)
        return State(
            lineage=raw["lineage"],
            serial=raw["serial"],
            position=raw.get("position", 0),
            resources={
                (address := at(record["address"])): recorded_from_json(record, address)
                for record in raw["resources"]
            },
            open_intents={intent.address: intent for intent in open_intents},
            versions={at(text): count for text, count in raw.get("versions", {}).items()},
            plans={
                at(text): plans.setdefault(plan, plan)
                for text, (digest, before) in raw.get("plans", {}).items()
                for plan in [(digest, before)]
            },
            orphaned_intents=orphans,
            approved={
                at(text): (values, plan) for text, (values, plan) in raw.get("approved", {}).items()
            },
            forgotten={
                (address := at(record["address"])): recorded_from_json(record, address)
                for record in raw.get("forgotten", ())
            },
            moved_to=raw.get("moved_to", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is corrupt: {error!r}",
            "Restore the state from a backup. Nothing was changed.",
            code="state-corrupt",
        ) from error


Json = Mapping[str, Any]

_REPLAYED_FIELDS = ("renewals", "released", "renewed")


def intent_to_json(intent: Intent) -> dict[str, Any]:
    """Convert an intent for the log, without fields that only replaying sets."""
    form = to_json(replace(intent, inputs={}))
    for name in _REPLAYED_FIELDS:
        del form[name]
    return {**form, "inputs": intent.inputs}  # JSON, which has nothing to convert


def intent_from_json(raw: Json) -> Intent:
    """Convert the JSON form back."""
    return from_json(Intent, raw)


def recorded_to_json(recorded: RecordedResource) -> dict[str, Any]:
    """Convert a resource to JSON without address and version."""
    return {
        "provider": recorded.provider,
        "attributes": decoded(recorded.attributes),
        "outputs": recorded.outputs,
        "depends_on": [str(address) for address in recorded.depends_on],
        "lifecycle": _DEFAULT_LIFECYCLE
        if recorded.lifecycle == DEFAULT_LIFECYCLE
        else to_json(recorded.lifecycle),
        "key": recorded.key,
    }


_DEFAULT_LIFECYCLE = to_json(DEFAULT_LIFECYCLE)


def recorded_from_json(raw: Json, address: Address) -> RecordedResource:
    """Convert the JSON form back."""
    lifecycle, attributes = raw.get("lifecycle", _DEFAULT_LIFECYCLE), raw["attributes"]
    default = lifecycle == _DEFAULT_LIFECYCLE
    return RecordedResource(
        address,
        sys.intern(raw["provider"]),
        JsonText(attributes) if isinstance(attributes, str) else attributes,
        raw["outputs"],
        tuple(map(Address.parse, raw.get("depends_on", ()))),
        DEFAULT_LIFECYCLE if default else from_json(JobLifecycle, lifecycle),
        raw.get("version", 1),
        raw.get("key", ""),
    )
