"""Format the offers of a plan: the machines to be created, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Plan
from trainctl.plugin_api.offers import Offer
from trainctl.views.plan.changes import PageStyle
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import escape

_UNKNOWN = "?"
_BILLING = (
    "Offers are tried in this order, after mirroring, which is not billed.",
    "Machines are billed from their creation until they are destroyed.",
)


def offer_lines(plan: Plan, page: PageStyle) -> list[str]:
    """Return a table of offers, their price sources, and what is billed when."""
    rows = [
        (address.name, zones, offer)
        for address, offers in plan.offers.items()
        for zones, offer in _merge_zones(offers)
    ]
    if not rows:
        return []
    offers = [offer for _, _, offer in rows]
    columns = {
        "CLUSTER": [name if len(plan.offers) > 1 else "" for name, _, _ in rows],
        "TYPE": [offer.type for offer in offers],
        "GPUS": [f"{offer.gpus} {offer.gpu_kind}" if offer.gpus else "" for offer in offers],
        "ZONE": [zones for _, zones, _ in rows],
        "MODEL": [offer.availability for offer in offers],
        "USD/H": [_amount(offer.price_per_hour) for offer in offers],
        "QUOTA": ["" if o.quota_left is None else str(o.quota_left) for o in offers],
    }
    return [
        *table(
            list(columns),
            list(zip(*columns.values(), strict=True)),
            right=frozenset({"USD/H", "QUOTA"}),
            width=page.width,
            shrinks=frozenset({"ZONE"}),
            drops=("CLUSTER",),
            style=page.style,
            indent="  ",
        ),
        f"  Prices: {_sources(offers)}.",
        *(f"  {escape(note)}." for note in dict.fromkeys(offer.note for offer in offers) if note),
        *(f"  {line}" for line in _BILLING),
        *_kept_lines(plan),
    ]


def _merge_zones(offers: Iterable[Offer]) -> list[tuple[str, Offer]]:
    """Merge consecutive offers that differ by zone only: ``us-east-1a/b``."""
    merged: list[tuple[list[str], Offer]] = []
    for offer in offers:
        alike = replace(offer, zone="")
        if merged and merged[-1][1] == alike:
            merged[-1][0].append(offer.zone)
        else:
            merged.append(([offer.zone], alike))
    return [(_zone_list(zones), offer) for zones, offer in merged]


def _zone_list(zones: Sequence[str]) -> str:
    first, *others = zones
    if not first:
        return "any"
    short = [zone.removeprefix(first[:-1]) for zone in others]
    return "/".join([first, *short])


def _amount(price: float | None) -> str:
    return _UNKNOWN if price is None else f"{price:.4f}".rstrip("0").ljust(4, "0")


def _sources(offers: Iterable[Offer]) -> str:
    named = dict.fromkeys((offer.price_source, offer.price_date) for offer in offers)
    return ", ".join(escape(f"{source} of {date}" if date else source) for source, date in named)


def _kept_lines(plan: Plan) -> list[str]:
    """Return the existing machines that a changed cluster keeps."""
    kept: Mapping[Address, list[str]] = {
        change.address: [f"{node['cluster']}/{node['name']}" for node in change.outputs["nodes"]]
        for change in plan.changes
        if change.address in plan.offers
        and change.action is Action.UPDATE
        and change.outputs.get("nodes")
    }
    names = [escape(name) for of_cluster in kept.values() for name in of_cluster]
    return [f"  Existing machines are used again: {', '.join(names)}."] if names else []
