"""Planned attributes and rows of weights, and recorded transfer rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainctl.base.listing import ResolvedSource
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind, of_kind
from trainctl.plan.changes import REMOVES
from trainctl.plan.resources import PLANNED_WEIGHTS_ATTRIBUTES, DesiredValues, ResourceContext
from trainctl.plan.values import Change, PlanInputs, TierFacts, WeightsFacts, WeightsRow

_NAMES = sorted(PLANNED_WEIGHTS_ATTRIBUTES)
_SELECTION = ("source", "allow_patterns", "ignore_patterns", "sha256", "name")


def desired_weights_attributes(
    context: ResourceContext, facts: WeightsFacts | None
) -> DesiredValues:
    """Return the desired attributes with revision, pin, files and bytes if known."""
    known = _known(facts) or {}
    if "bytes" in known:
        listing = {"listing": facts.listing} if facts and facts.listing else {}
        return DesiredValues(context.desired(known), known_outputs=listing)
    before, desired = context.before, context.desired({})
    if context.recorded and all(before.get(key) == desired.get(key) for key in _SELECTION):
        return DesiredValues(context.desired({name: before.get(name) for name in _NAMES}))
    unknown = [name for name in _NAMES if name not in known]
    return DesiredValues(
        context.desired({**dict.fromkeys(_NAMES), **known}), unknown=dict.fromkeys(unknown, True)
    )


def _known(facts: WeightsFacts | None) -> dict[str, Any] | None:
    if facts is None or facts.resolved is None:
        return dict(facts.locked_as) if facts and facts.locked_as else None
    resolved = facts.resolved
    return {
        "revision": resolved.revision,
        "pin": resolved.pin,
        "files": len(resolved.files),
        **({"bytes": resolved.size} if resolved.is_measured else {}),
    }


def content_key(resolved: ResolvedSource) -> str:
    """Return a key that is equal for weights with the same content."""
    return f"{resolved.identity} {resolved.pin}"


def pins(inputs: PlanInputs, values_by_address: Mapping[Address, DesiredValues]) -> dict[str, Any]:
    """Return all pins after the plan, by address as text."""
    recorded = {
        str(weights.address): weights.attributes.get("pin")
        for weights in of_kind(inputs.state.external, Kind.WEIGHTS)
    }
    planned = {str(address): values.after["pin"] for address, values in values_by_address.items()}
    return {**recorded, **planned}


def weights_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[WeightsRow, ...]:
    """Return a row for all weights that are not removed, sorted by address."""
    rate = mirroring_rate(inputs.state)
    remaining = [
        change
        for change in changes
        if change.address.kind is Kind.WEIGHTS and change.action not in REMOVES
    ]
    return tuple(
        _row(change, inputs.weights.get(change.address), rate)
        for change in sorted(remaining, key=lambda change: change.address)
    )


def expected_tiers(row: WeightsRow) -> TierFacts | None:
    """Return the tiers for a node with an empty cache."""
    if row.bytes is None or row.bytes_mirrored is None:
        return None
    return TierFacts(mirror=row.bytes_mirrored, upstream=row.bytes - row.bytes_mirrored)


def _row(change: Change, facts: WeightsFacts | None, rate: float | None) -> WeightsRow:
    after = change.after or {}
    size = after.get("bytes")
    mirrored = _mirrored(change, facts, size)
    upstream = None if size is None or mirrored is None else max(0, size - mirrored)
    relayed_bytes = facts.relayed_bytes if facts else 0
    through_client = relayed_bytes if upstream is None else min(relayed_bytes, upstream)
    return WeightsRow(
        address=change.address,
        source=str(after.get("source", "")),
        revision=after.get("revision"),
        pin=after.get("pin"),
        files=after.get("files"),
        bytes=size,
        bytes_mirrored=mirrored,
        bytes_upstream=upstream,
        bytes_through_client=None if size is None else through_client,
        listing=change.outputs_after.get("listing"),
        forecast_seconds=_seconds(upstream, rate),
    )


def _seconds(count: int | None, rate: float | None) -> float | None:
    if not count:
        return None if count is None else 0.0
    return round(count / rate, 1) if rate else None


def _mirrored(change: Change, facts: WeightsFacts | None, size: int | None) -> int | None:
    if size is None:
        return None
    if facts is not None and facts.resolved is not None and facts.mirrored is not None:
        return min(facts.mirrored, size)
    # The mirror was not queried: assume that recorded weights without changes are mirrored.
    return size if change.action is Action.NOOP else 0


_LARGE = 16 * 10**6
_LONG_SECONDS, _MIN_BYTES = 1.0, 10**6
"""Smaller transfers count from this duration and size on; otherwise overhead dominates."""


def transfer_rate(transfers: Iterable[tuple[int, float]]) -> float | None:
    """Return the rate, bytes per second, of the largest transfer (bytes, seconds).

    Returns None if none was large or slow enough to measure.
    """
    measurable = (
        (size, seconds)
        for size, seconds in transfers
        if seconds and (size >= _LARGE or (size >= _MIN_BYTES and seconds >= _LONG_SECONDS))
    )
    size, seconds = max(measurable, default=(0, 0.0))
    return size / seconds if size else None


def mirroring_rate(state: State) -> float | None:
    """Return the recorded rate from upstream into the mirror."""
    outputs = (resource.outputs for resource in state.external.values())
    records = (output["fetched"] for output in outputs if "fetched" in output)
    return transfer_rate((record["bytes"], record["seconds"]) for record in records)
