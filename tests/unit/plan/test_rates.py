"""Which transfers on record tell how fast the next one will be."""

from __future__ import annotations

import pytest

from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address
from trainctl.plan.rates import into_mirror, rate_of


@pytest.mark.parametrize(
    ("transfers", "rate"),
    [
        ([], None),
        ([(1000, 0.04)], None),  # nothing but the time until it begins
        ([(1000, 40.0)], None),  # the source was busy
        ([(15_999_999, 0.5)], None),
        ([(16_000_000, 0.5)], 32e6),
        ([(2_000_000, 10.0)], 2e5),  # a slow line
        ([(2_000_000, 10.0), (20_000_000, 2.0), (1000, 0.1)], 1e7),
        ([(16_000_000, 0.0)], None),
    ],
)
def test_only_a_transfer_that_is_worth_it_tells_a_rate(
    transfers: list[tuple[int, float]], rate: float | None
) -> None:
    """The largest, if it was large or took its time; else nobody knows."""
    assert rate_of(transfers) == rate


def test_the_rate_into_the_mirror_is_that_of_all_weights() -> None:
    """Whatever weights showed it, also ones that are of no job."""
    state = State(
        resources={
            (address := Address.parse(f"weights.w{number}")): Recorded(
                address, "trainctl", {}, {"fetched": {"bytes": size, "seconds": 2.0}}
            )
            for number, size in enumerate((1000, 50_000_000))
        }
    )

    assert into_mirror(state) == 25e6
    assert into_mirror(State()) is None
