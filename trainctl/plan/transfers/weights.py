"""What is known of each source before a byte of it moves, and how fast weights moved before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainctl.base.listing import ResolvedSource
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.plan.graph import REMOVES
from trainctl.plan.resource_context import ResourceContext
from trainctl.plan.resources import PLANNED_WEIGHTS_ATTRIBUTES, DesiredValues
from trainctl.plan.values import Change, PlanInputs, TierFacts, WeightsFacts, WeightsRow

_NAMES = sorted(PLANNED_WEIGHTS_ATTRIBUTES)
_SELECTION = ("source", "allow_patterns", "ignore_patterns", "sha256")


def desired_weights_attributes(
    subject: ResourceContext, facts: WeightsFacts | None
) -> DesiredValues:
    """The attributes with revision, pin, files and bytes; those are unknown where nobody could tell them."""
    known = _known(facts)
    if known is not None:
        listing = {"listing": facts.listing} if facts and facts.listing else {}
        return DesiredValues(subject.wanted(known), known_outputs=listing)
    before, wanted = subject.before, subject.wanted({})
    if subject.recorded and all(before.get(key) == wanted.get(key) for key in _SELECTION):
        return DesiredValues(subject.wanted({name: before.get(name) for name in _NAMES}))
    return DesiredValues(subject.wanted(dict.fromkeys(_NAMES)), unknown=dict.fromkeys(_NAMES, True))


def _known(facts: WeightsFacts | None) -> dict[str, Any] | None:
    if facts is None or facts.resolved is None:
        return dict(facts.locked_as) if facts and facts.locked_as else None
    resolved = facts.resolved
    return {
        "revision": resolved.revision,
        "pin": resolved.pin,
        "files": len(resolved.files),
        "bytes": resolved.size,
    }


def content_key(resolved: ResolvedSource) -> str:
    """What weights are, the same for all that name one source at one version."""
    return f"{resolved.identity} {resolved.pin}"


def pins(inputs: PlanInputs, values_by_address: Mapping[Address, DesiredValues]) -> dict[str, Any]:
    """The pin of every weights as it will be, by address as text; what this plan leaves alone keeps its recorded one."""
    found = {
        str(address): recorded.attributes.get("pin")
        for address, recorded in inputs.state.resources.items()
        if address.kind is Kind.WEIGHTS
    }
    return {
        **found,
        **{
            str(address): desired_values.after["pin"]
            for address, desired_values in values_by_address.items()
        },
    }


def weights_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[WeightsRow, ...]:
    """A row for each weights that stays or comes, by address."""
    kept = [
        change
        for change in changes
        if change.address.kind is Kind.WEIGHTS and change.action not in REMOVES
    ]
    rate = mirroring_rate(inputs.state)
    return tuple(
        _line(change, inputs.weights.get(change.address), rate)
        for change in sorted(kept, key=lambda change: change.address)
    )


def expected_tiers(line: WeightsRow) -> TierFacts | None:
    """Where the bytes are for a node that has none of them and could not be asked."""
    if line.bytes is None or line.bytes_mirrored is None:
        return None
    return TierFacts(mirror=line.bytes_mirrored, upstream=line.bytes - line.bytes_mirrored)


def _line(change: Change, facts: WeightsFacts | None, rate: float | None) -> WeightsRow:
    after = change.after or {}
    size = after.get("bytes")
    mirrored = _mirrored(change, facts, size)
    upstream = None if size is None or mirrored is None else max(0, size - mirrored)
    relayed_bytes = facts.relayed_bytes if facts else 0
    return WeightsRow(
        address=change.address,
        source=str(after.get("source", "")),
        revision=after.get("revision"),
        pin=after.get("pin"),
        files=after.get("files"),
        bytes=size,
        bytes_mirrored=mirrored,
        bytes_upstream=upstream,
        bytes_through_client=None
        if size is None
        else relayed_bytes
        if upstream is None
        else min(relayed_bytes, upstream),
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
    # Nobody looked: what is recorded and stays as it is was mirrored, of the rest nothing is known to be.
    return size if change.action is Action.NOOP else 0


_LARGE = 16 * 10**6
_LONG_SECONDS, _MIN_BYTES = 1.0, 10**6
"""What takes as long tells a rate of a slow line from this size on; what is smaller took its time for something else."""


def transfer_rate(transfers: Iterable[tuple[int, float]]) -> float | None:
    """Bytes a second, as the largest of the transfers (bytes, seconds) showed; None where none was large, or slow."""
    telling = (
        (size, seconds)
        for size, seconds in transfers
        if seconds and (size >= _LARGE or (size >= _MIN_BYTES and seconds >= _LONG_SECONDS))
    )
    size, seconds = max(telling, default=(0, 0.0))
    return size / seconds if size else None


def mirroring_rate(state: State) -> float | None:
    """The rate from upstream into the mirror."""
    fetched = (
        resource.outputs["fetched"]
        for resource in state.resources.values()
        if "fetched" in resource.outputs
    )
    return transfer_rate((one["bytes"], one["seconds"]) for one in fetched)
