"""Conversion of states to JSON and back, for snapshots and ``state pull``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
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


def snapshot_to_json(state: State) -> dict[str, Any]:
    """Convert a state to JSON for a snapshot: each resource is a row, its attributes are text."""
    rows = [
        [
            str(address),
            recorded.version,
            state.versions.get(address),
            *state.plans.get(address, ("", None)),
            recorded.provider,
            json_text(recorded.attributes),
            recorded.outputs,
            [str(needed) for needed in recorded.depends_on],
            None if recorded.lifecycle == DEFAULT_LIFECYCLE else to_json(recorded.lifecycle),
            recorded.key,
        ]
        for address, recorded in _by_address(state.resources)
    ]
    apart = state.versions.keys() - state.resources.keys()
    versions = {address: state.versions[address] for address in apart}
    plans = {address: state.plans[address] for address in state.plans.keys() - state.resources}
    rest = replace(state, resources={}, versions=versions, plans=plans)
    return {**state_to_json(rest), "resources": rows}


def _read_rows(
    rows: Iterable[list[Any]],
    versions: dict[Address, int],
    plans: dict[Address, tuple[str, int]],
) -> dict[Address, RecordedResource]:
    """Return the resources of a snapshot; add their versions and plans."""
    resources: dict[Address, RecordedResource] = {}
    shared: dict[tuple[str, int], tuple[str, int]] = {}
    for text, version, count, plan, before, provider, attributes, outputs, needed, *more in rows:
        lifecycle, key = more
        address = Address.parse(text)
        resources[address] = RecordedResource(
            address,
            sys.intern(provider),
            JsonText(attributes),
            outputs,
            tuple(map(Address.parse, needed)),
            DEFAULT_LIFECYCLE if lifecycle is None else from_json(JobLifecycle, lifecycle),
            version,
            key,
        )
        if count is not None:
            versions[address] = count
        if before is not None:
            plans[address] = shared.setdefault((plan, before), (plan, before))
    return resources


def _records(records: Mapping[Address, RecordedResource]) -> list[dict[str, Any]]:
    return [
        {"address": str(address), "version": recorded.version, **recorded_to_json(recorded)}
        for address, recorded in _by_address(records)
    ]


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
        open_intents = [intent_from_json(intent) for intent in raw.get("open_intents", ())]
        orphans: dict[Address, tuple[Intent, ...]] = {}
        for each in raw.get("orphaned_intents", ()):
            orphan = intent_from_json(each)
            orphans[orphan.address] = (*orphans.get(orphan.address, ()), orphan)
        versions = _by_parsed(raw.get("versions", {}))
        plans = {at: (plan, seen) for at, (plan, seen) in _by_parsed(raw.get("plans", {})).items()}
        records = raw["resources"]
        has_rows = bool(records) and isinstance(records[0], list)
        return State(
            lineage=raw["lineage"],
            serial=raw["serial"],
            position=raw.get("position", 0),
            resources=_read_rows(records, versions, plans) if has_rows else _recorded(records),
            open_intents={intent.address: intent for intent in open_intents},
            versions=versions,
            plans=plans,
            orphaned_intents=orphans,
            approved={
                at: (values, plan)
                for at, (values, plan) in _by_parsed(raw.get("approved", {})).items()
            },
            forgotten=_recorded(raw.get("forgotten", ())),
            moved_to=raw.get("moved_to", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state is corrupt: {error!r}",
            "Restore the state from a backup. Nothing was changed.",
            code="state-corrupt",
        ) from error


def _by_parsed(values: Mapping[str, Any]) -> dict[Address, Any]:
    return {Address.parse(text): value for text, value in values.items()}


def _recorded(records: Iterable[Json]) -> dict[Address, RecordedResource]:
    return {
        (address := Address.parse(record["address"])): recorded_from_json(record, address)
        for record in records
    }


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
    lifecycle = raw.get("lifecycle", _DEFAULT_LIFECYCLE)
    default = lifecycle == _DEFAULT_LIFECYCLE
    return RecordedResource(
        address,
        raw["provider"],
        raw["attributes"],
        raw["outputs"],
        tuple(map(Address.parse, raw.get("depends_on", ()))),
        DEFAULT_LIFECYCLE if default else from_json(JobLifecycle, lifecycle),
        raw.get("version", 1),
        raw.get("key", ""),
    )
