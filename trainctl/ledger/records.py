"""The JSON of the values that entries and states share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.ledger.state import Holder, Intent, Recorded
from trainctl.model.address import Address
from trainctl.model.json_form import from_json, to_json
from trainctl.model.resource import Lifecycle

Json = Mapping[str, Any]


def intent_to_json(intent: Intent) -> dict[str, Any]:
    """An intent as the log has it: without what only the fold knows."""
    return {
        "id": intent.id,
        "time": intent.time,
        "address": str(intent.address),
        "action": intent.action,
        "provider": intent.provider,
        "key": intent.key,
        "inputs": intent.inputs,
        "holder": _holder_to_json(intent.holder),
        "lease_seconds": intent.lease_seconds,
        "plan": intent.plan,
        "reason": intent.reason,
    }


def intent_from_json(raw: Json) -> Intent:
    """Read an intent; what the fold adds (``renewals``, ``renewed``, ``released``) is there in a state only."""
    return Intent(
        id=raw["id"],
        address=Address.parse(raw["address"]),
        action=raw["action"],
        provider=raw["provider"],
        key=raw["key"],
        inputs=raw["inputs"],
        holder=_holder(raw["holder"]),
        time=float(raw["time"]),
        lease_seconds=float(raw["lease_seconds"]),
        plan=raw.get("plan", ""),
        renewals=raw.get("renewals", 0),
        released=raw.get("released", False),
        reason=raw.get("reason", ""),
        renewed=raw.get("renewed", 0.0),
    )


def recorded_to_json(recorded: Recorded) -> dict[str, Any]:
    """A resource without its address and version: an entry has the first beside it, the fold knows the second."""
    return {
        "provider": recorded.provider,
        "attributes": recorded.attributes,
        "outputs": recorded.outputs,
        "depends_on": [str(address) for address in recorded.depends_on],
        "lifecycle": to_json(recorded.lifecycle),
        "key": recorded.key,
    }


def recorded_from_json(address: Address, raw: Json) -> Recorded:
    """Read what ``recorded_to_json`` wrote."""
    return Recorded(
        address=address,
        provider=raw["provider"],
        attributes=raw["attributes"],
        outputs=raw["outputs"],
        depends_on=tuple(Address.parse(text) for text in raw.get("depends_on", ())),
        lifecycle=from_json(Lifecycle, raw.get("lifecycle", {})),
        version=raw.get("version", 1),
        key=raw.get("key", ""),
    )


def _holder_to_json(holder: Holder) -> dict[str, Any]:
    return {
        "machine": holder.machine,
        "boot": holder.boot,
        "pid": holder.pid,
        "started": holder.started,
        "who": holder.who,
    }


def _holder(raw: Json) -> Holder:
    return Holder(raw["machine"], raw["boot"], raw["pid"], raw["started"], raw["who"])
