"""Which transfers on record tell how fast the next one will be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import PlanScenario, at, source_of, state_after
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.plan.planner import make_plan
from trainctl.plan.transfers.weights import mirroring_rate, transfer_rate
from trainctl.plan.values import WeightsFacts, WeightsRow


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
    assert transfer_rate(transfers) == rate


def test_the_rate_into_the_mirror_is_that_of_all_weights() -> None:
    """Whatever weights showed it, also ones that are of no job."""
    state = State(
        resources={
            (address := Address.parse(f"weights.w{number}")): RecordedResource(
                address, "trainctl", {}, {"fetched": {"bytes": size, "seconds": 2.0}}
            )
            for number, size in enumerate((1000, 50_000_000))
        }
    )

    assert mirroring_rate(state) == 25e6
    assert mirroring_rate(State()) is None


def line(facts: WeightsFacts, rate: float | None = 1e8) -> WeightsRow:
    """What a plan says of weights, when the last came at that rate."""
    before = state_after(make_plan(PlanScenario().inputs()))
    weights = before.resources[at("weights.qwen3")]
    fetched = {"fetched": {"bytes": 10**9, "seconds": 10**9 / rate}} if rate else {}
    known = {weights.address: replace(weights, outputs={**weights.outputs, **fetched})}
    state = replace(before, resources={**before.resources, **known})
    made = make_plan(PlanScenario().inputs(state, weights={weights.address: facts}))
    return next(one for one in made.weights if one.address == weights.address)


def test_weights_say_how_long_they_take_and_by_which_way() -> None:
    """What has to be fetched, at the rate on record; nothing takes no time, and an unknown rate tells none."""
    source = source_of("hf://Qwen/Qwen3-0.6B@main", 10**9)

    whole, half = (
        line(WeightsFacts(source)),
        line(WeightsFacts(source, 10**9 // 2, relayed_bytes=7)),
    )
    nothing, unknown = line(WeightsFacts(source, 10**9)), line(WeightsFacts(source), None)

    assert (whole.path, whole.forecast_seconds) == ("direct", 10.0)
    assert (half.path, half.forecast_seconds) == ("through-client", 5.0)
    assert (nothing.path, nothing.forecast_seconds) == ("none", 0.0)
    assert (unknown.path, unknown.forecast_seconds) == ("direct", None)


def test_no_more_goes_through_the_operator_than_is_fetched() -> None:
    source = source_of("hf://Qwen/Qwen3-0.6B@main", 10**9)

    found = line(WeightsFacts(source, 10**8, relayed_bytes=10**9))

    assert (found.bytes_mirrored, found.bytes_upstream) == (10**8, 9 * 10**8)
    assert (found.bytes_through_client, found.forecast_seconds) == (9 * 10**8, 9.0)
