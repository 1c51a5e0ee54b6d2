"""Rates of recorded transfers, and what they forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import PlanScenario, at, source_of, state_after
from trainctl.ledger.state import RecordedResource, State
from trainctl.plan.planner import make_plan
from trainctl.plan.values import WeightsFacts
from trainctl.plan.weights import mirroring_rate, transfer_rate


@pytest.mark.parametrize(
    ("transfers", "rate"),
    [
        ([], None),
        ([(1000, 0.04)], None),  # latency
        ([(1000, 40.0)], None),  # the source was busy
        ([(15_999_999, 0.5)], None),
        ([(16_000_000, 0.5)], 32e6),
        ([(2_000_000, 10.0)], 2e5),  # a slow line
        ([(2_000_000, 10.0), (20_000_000, 2.0), (1000, 0.1)], 1e7),
        ([(16_000_000, 0.0)], None),
    ],
)
def test_the_largest_transfer_has_the_rate(
    transfers: list[tuple[int, float]], rate: float | None
) -> None:
    """If it was large or took long; else the rate is unknown."""
    assert transfer_rate(transfers) == rate


def test_the_rate_into_the_mirror_is_that_of_all_weights() -> None:
    records = [
        RecordedResource(
            at(f"weights.w{size}"), "trainctl", {}, {"fetched": {"bytes": size, "seconds": 2.0}}
        )
        for size in (1000, 50_000_000)
    ]
    assert mirroring_rate(State(resources={record.address: record for record in records})) == 25e6
    assert mirroring_rate(State()) is None


SOURCE = source_of("hf://Qwen/Qwen3-0.6B@main", 10**9)


@pytest.mark.parametrize(
    ("facts", "rate", "path", "seconds"),
    [
        (WeightsFacts(SOURCE), 1e8, "direct", 10.0),
        (WeightsFacts(SOURCE, 10**9 // 2, relayed_bytes=7), 1e8, "through-client", 5.0),
        (WeightsFacts(SOURCE, 10**8, relayed_bytes=10**9), 1e8, "through-client", 9.0),
        (WeightsFacts(SOURCE, 10**9), 1e8, "none", 0.0),
        (WeightsFacts(SOURCE), None, "direct", None),
    ],
)
def test_a_forecast_is_for_bytes_that_are_missing(
    facts: WeightsFacts, rate: float | None, path: str, seconds: float | None
) -> None:
    """No more bytes go through the client than are missing."""
    state = state_after(make_plan(PlanScenario().inputs()))
    weights = state.resources[at("weights.qwen3")]
    fetched = {"fetched": {"bytes": 10**9, "seconds": 10**9 / rate}} if rate else {}
    recorded = replace(weights, outputs={**weights.outputs, **fetched})
    state = replace(state, resources={**state.resources, weights.address: recorded})
    (row,) = make_plan(PlanScenario().inputs(state, weights={weights.address: facts})).weights
    assert (row.path, row.forecast_seconds) == (path, seconds)
    assert row.bytes_upstream == 10**9 - (facts.mirrored or 0)
    assert row.bytes_through_client == min(facts.relayed_bytes, row.bytes_upstream)
