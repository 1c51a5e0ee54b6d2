"""The table of offers of a plan."""

from __future__ import annotations

from dataclasses import replace

from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change, Plan
from trainctl.plugin_api.offers import Offer
from trainctl.views.plan.changes import PageStyle
from trainctl.views.plan.offers import offer_lines
from trainctl.views.terminal.text import plain

CLUSTER = Address.parse("cluster.gpu")
SPOT = Offer("g6.xlarge", 1, "L4", "eu-west-1a", 0.3219, "spot history", "2026-01-02", "spot", 4)
DEAR = Offer(
    "p5.48xlarge", 8, "H100", "eu-west-1a", 55.04, "table", "2025-06-15", "on-demand", None, "no quota"
)  # fmt: skip


def test_offers_that_differ_by_zone_share_a_row_of_80_columns() -> None:
    """Sources, notes and what is billed are lines below."""
    offers = (SPOT, replace(SPOT, zone="eu-west-1b"), DEAR)
    change = Change(CLUSTER, Action.UPDATE, "cloud", outputs={"nodes": [{"cluster": "gpu", "name": "gpu-0"}]})  # fmt: skip
    plan = Plan("", 0, "", (change,), offers={CLUSTER: offers})

    lines = offer_lines(plan, PageStyle(80, plain))

    assert lines == [
        "  TYPE         GPUS    ZONE          MODEL       USD/H  QUOTA",
        "  g6.xlarge    1 L4    eu-west-1a/b  spot       0.3219      4",
        "  p5.48xlarge  8 H100  eu-west-1a    on-demand   55.04",
        "  Prices: spot history of 2026-01-02, table of 2025-06-15.",
        "  no quota.",
        "  Offers are tried in this order, after mirroring, which is not billed.",
        "  Machines are billed from their creation until they are destroyed.",
        "  Existing machines are used again: gpu/gpu-0.",
    ]


def test_clusters_are_named_if_there_are_several_and_unknown_prices_are_marked() -> None:
    other = Address.parse("cluster.other")
    free = replace(SPOT, zone="", price_per_hour=None, price_source="unknown", price_date="")
    plan = Plan("", 0, "", (), offers={CLUSTER: (SPOT,), other: (free,)})

    [_, first, second, prices, *_] = offer_lines(plan, PageStyle(80, plain))

    assert first.split()[0] == "gpu"
    assert second.split() == ["other", "g6.xlarge", "1", "L4", "any", "spot", "?", "4"]
    assert prices == "  Prices: spot history of 2026-01-02, unknown."
    assert offer_lines(Plan("", 0, "", ()), PageStyle(80, plain)) == []
