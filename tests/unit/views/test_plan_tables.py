"""What the table of weights tells of a plan."""

from __future__ import annotations

from dataclasses import replace

from trainctl.model.address import Address
from trainctl.plan.values import WeightsLine
from trainctl.views.plan_tables import weights_table
from trainctl.views.plan_values import Page
from trainctl.views.text import plain

LINE = WeightsLine(
    Address.parse("weights.a"), "hf://me/a", "c" * 40, None, 2, 5000, 1000, 4000, 0, None
)


def test_what_weights_take_is_shown_where_something_is_known() -> None:
    """The time and what comes with others have a column only if they say something."""
    other = replace(LINE, bytes_upstream=1000, bytes_shared=3000, forecast_seconds=0.0)
    page = Page(80, plain)

    assert [one.split() for one in weights_table([LINE], page)] == [
        ["WEIGHTS", "REVISION", "FILES", "SIZE", "MIRRORED", "TO", "FETCH"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "4.0", "kB"],
    ]
    assert [
        one.split() for one in weights_table([replace(LINE, forecast_seconds=12.0), other], page)
    ] == [
        ["WEIGHTS", "REVISION", "FILES", "SIZE", "MIRRORED", "SHARED", "TO", "FETCH", "TIME"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "-", "4.0", "kB", "12", "s"],
        ["weights.a", "c" * 12, "2", "5.0", "kB", "1.0", "kB", "3.0", "kB", "1.0", "kB", "-"],
    ]
