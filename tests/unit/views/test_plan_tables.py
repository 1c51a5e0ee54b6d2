"""What the table of weights tells of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainctl.model.address import Address
from trainctl.plan.values import DeliveryRow, ImageRow, TierFacts, WeightsRow
from trainctl.views.plan.changes import PageStyle
from trainctl.views.plan.tables import deliveries_table, images_table, weights_table
from trainctl.views.terminal.text import plain

LINE = WeightsRow(
    Address.parse("weights.a"), "hf://me/a", "c" * 40, None, 2, 5000, 1000, 4000, 0, None
)


def test_what_weights_take_is_shown_where_something_is_known() -> None:
    """The time has a column only if it says something."""
    other = replace(LINE, bytes_upstream=1000, forecast_seconds=0.0)
    page = PageStyle(80, plain)

    assert [one.split() for one in weights_table([LINE], page)] == [
        ["WEIGHTS", "REVISION", "FILES", "SIZE", "CACHED", "TO", "DOWNLOAD"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "4.0", "kB"],
    ]
    assert [
        one.split() for one in weights_table([replace(LINE, forecast_seconds=12.0), other], page)
    ] == [
        ["WEIGHTS", "REVISION", "FILES", "SIZE", "CACHED", "TO", "DOWNLOAD", "TIME"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "4.0", "kB", "12", "s"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "1.0", "kB", "-"],
    ]


LONG = replace(
    LINE,
    address=Address.parse("weights.llama-3-1-8b-instruct"),
    bytes=16_100_000_000,
    bytes_mirrored=1_200_000_000,
    bytes_upstream=14_900_000_000,
    forecast_seconds=150.0,
)
TIERS = TierFacts(node=0, cluster=0, mirror=1_200_000_000, upstream=14_900_000_000)


def delivery(job: str, rank: int, cluster: str = "workstation-basement") -> DeliveryRow:
    """One rank of a job with a name as people give them."""
    node = f"{cluster}/workstation-basement-{rank}"
    return DeliveryRow(
        Address.parse(f"job.{job}"), rank, node, LONG.address, TIERS, "direct", "link", "m", 150.0
    )


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_give_way_where_the_weights_do_not_fit(width: int) -> None:
    """No row is broken; what is measured is shown whole."""
    relayed = replace(LONG, bytes_through_client=14_900_000_000)

    for line in (LONG, relayed):
        header, row = weights_table([line], PageStyle(width, plain))

        assert max(len(header), len(row)) <= width
        assert row.split()[0].startswith("weights.l")
        assert "instruct " in row
        assert row.endswith("  2m 30s")
        assert " 16.1 GB " in row
        assert " 14.9 GB " in row
    assert ("FILES" in weights_table([LONG], PageStyle(width, plain))[0]) is (width > 60)
    assert "c" * 12 in weights_table([relayed], PageStyle(100, plain))[1]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_names_give_way_where_the_deliveries_do_not_fit(width: int) -> None:
    """Then what matters less; no row is broken, and what moves is told whole."""
    lines = [delivery("evaluate-on-mmlu", 0), delivery("tune", 0), delivery("tune", 1)]

    told = deliveries_table(lines, PageStyle(width, plain))

    assert max(map(len, told[:-3])) <= width
    rows = [one for one in told if "mirror 1.2 GB, upstream 14.9 GB" in one]
    assert told[1:4] == rows
    assert len({one.partition("mirror")[0] for one in rows}) == 3
    assert ("NODE" in told[0]) is (width > 80)
    assert ("WEIGHTS" in told[0]) is (width > 60)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_images_fit(width: int) -> None:
    """Names give way here, too, and then which engine it is."""
    image = "registry.example.com/team/pytorch:2.4.0-cuda12.1-cudnn9-runtime"
    lines = [
        ImageRow(one.job, one.rank, one.node, image, "apptainer", present=False)
        for one in (delivery("evaluate-on-mmlu", 0), delivery("tune", 1))
    ]

    told = images_table(lines, PageStyle(width, plain))

    assert max(map(len, told)) <= width
    assert all(one.endswith("  pulled at start") for one in told[1:])
    assert ("ENGINE" in told[0]) is (width > 80)
