"""Limits that every plan must keep."""

from __future__ import annotations

from typing import Any

import pytest

from trainctl.model.address import Address, Kind
from trainctl.model.specs.resource import DesiredResource
from trainctl.model.trust import PlanPolicy
from trainctl.plan.validation.checks import policy_violations


def resources(
    source: str = "hf://acme/a@main", provider: str = "ssh", **settings: Any
) -> dict[Address, DesiredResource]:
    weights, cluster = Address(Kind.WEIGHTS, "w"), Address(Kind.CLUSTER, "c")
    return {
        weights: DesiredResource(weights, "trainctl", {"source": source}),
        cluster: DesiredResource(cluster, provider, {"provider": provider, **settings}),
    }


def said(policy: PlanPolicy, found: dict[Address, DesiredResource], cost: float = 0.0) -> list[str]:
    return [f"{one.address}: {one.summary}" for one in policy_violations([policy], found, cost)]


@pytest.mark.parametrize(
    ("source", "pattern", "kept"),
    [
        ("hf://acme/a@main", "hf://acme/*", True),
        ("hf://acmeevil/a", "hf://acme/*", False),
        ("hf://datasets/acme/a", "hf://acme/*", False),
        ("s3://acme-models/x/y", "s3://acme-*", True),
        ("file:./data/a", "file:./data/*", True),
        ("file:data/a", "file:./data/*", True),
        ("file:./data/../../etc", "file:./data/*", False),
        ("file:///srv/data/../../etc/x", "file:///srv/*", False),
        ("file:///srv/data", "file:///srv/*", True),
        ("file:./x", "file:*", True),
    ],
)
def test_sources_match_as_they_lead(source: str, pattern: str, *, kept: bool) -> None:
    """Shell-style; a path that leads elsewhere by ``..`` is seen as where it leads."""
    assert (said(PlanPolicy("here", sources=(pattern,)), resources(source)) == []) is kept


def test_a_provider_and_a_region_are_a_clusters() -> None:
    """A cluster without a region is in none; one of the patterns must match."""
    policy = PlanPolicy("here", providers=("ssh", "aws"), regions=("eu-*",))
    assert said(policy, resources()) == []
    assert said(policy, resources(region="eu-west-1")) == []
    assert said(policy, resources(provider="slurm", region="us-west-2")) == [
        "cluster.c: the provider 'slurm' is not allowed",
        "cluster.c: the region 'us-west-2' is not allowed",
    ]


def test_a_price_is_the_plans() -> None:
    """Up to the limit is within it; no limit is none."""
    policy = PlanPolicy("here", max_hourly_cost=10.0)
    assert said(policy, {}, 10.0) == []
    assert said(policy, {}, 10.01) == ["None: the plan costs 10.01 per hour"]
    assert said(PlanPolicy("here"), {}, 1e9) == []


def test_a_violation_names_its_policy_and_forbids() -> None:
    """So that it is known where to ask, and that nothing failed."""
    (one,) = policy_violations(
        [PlanPolicy("trust.toml:3:1", "budget", max_hourly_cost=1.0)], {}, 2.0
    )
    assert one.detail == "Policy 'budget' at trust.toml:3:1: at most 1.00."
    assert one.forbids
