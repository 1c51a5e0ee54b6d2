"""Settings of the aws provider: the schema, problems beyond it, and the values that they become."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from trainctl.plugin_api.provider import ClusterSettings
from trainctl_aws import AwsProvider
from trainctl_aws.offers import MarketFacts, make_offers
from trainctl_aws.settings import read_settings

BASE = {"region": "us-east-1", "instance_types": ["g6.xlarge"], "ssh_from": ["192.0.2.1/32"]}


def settings(**own: Any) -> ClusterSettings:
    """Valid settings with changes; None removes one."""
    return ClusterSettings("gpu", {k: v for k, v in {**BASE, **own}.items() if v is not None})


@pytest.mark.parametrize(
    "own",
    [
        {"region": "us-east-1;"}, {"zones": []}, {"instance_types": ["g6"]}, {"accelerator": "H99"}, {"ami": "ubuntu"},
        {"availability_model": "cheap"}, {"volume": 1}, {"subnet": "sg-0123456789abcdef0"}, {"ssh_from": ["anywhere"]},
        {"jump": "-oProxyCommand=x"}, {"user": "-l"}, {"tags": {"trainctl:key": "x"}}, {"tags": {"aws:x": "x"}},
        {"max_price_per_hour": 0}, {"capacity_timeout": "soon"}, {"nodes": 0},
    ],
)  # fmt: skip
def test_the_schema_rejects(own: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(dict(settings(**own).settings), AwsProvider().schema())


@pytest.mark.parametrize(
    ("own", "summary"),
    [
        ({"accelerator": "H100"}, "set either instance_types or accelerator"),
        ({"instance_types": None}, "set either instance_types or accelerator"),
        ({"instance_types": None, "accelerator": "H100", "count": 3}, "no known instance type has 3 GPUs of type H100"),
        ({"ssh_from": None}, "ssh_from is missing"),
        ({"ssh_from": ["192.0.2.1/24"]}, "192.0.2.1/24 is not an address range: 192.0.2.1/24 has host bits set"),
        ({"nodes": 3, "max_nodes": 2}, "max_nodes is less than nodes (3)"),
        ({"efa": True, "instance_types": ["p5.48xlarge"]}, "p5.48xlarge with EFA has several network cards, so it gets no public address"),
    ],
)  # fmt: skip
def test_a_contradiction_is_reported(own: dict[str, Any], summary: str) -> None:
    """Each is one problem with advice."""
    cluster = settings(**own)
    jsonschema.validate(dict(cluster.settings), AwsProvider().schema())
    [problem] = AwsProvider().check(cluster)
    assert problem.summary == summary
    assert problem.detail


def test_valid_settings_have_no_problems() -> None:
    groups = {"ssh_from": None, "security_groups": ["sg-0123456789abcdef0"]}
    for own in ({}, groups, {"instance_types": None, "accelerator": "A100", "count": 8}):
        assert list(AwsProvider().check(settings(**own))) == []


def test_an_accelerator_becomes_types_with_the_cheapest_first() -> None:
    own = {"instance_types": None, "accelerator": "H100"}
    assert read_settings(settings(**own)).instance_types == ("p5.48xlarge",)
    assert read_settings(settings(**own, count=1)).instance_types == ("p5.4xlarge",)


def test_planned_nodes_differ_and_know_price_and_gpus() -> None:
    """Nodes that don't exist yet are not taken for nodes of one machine."""
    first, second = AwsProvider().plan(settings(nodes=2))
    assert (first.gpus, first.price_per_hour) == (1, 0.8048)
    assert first.details != second.details


def test_offers_go_by_type_then_zone_and_respect_the_price_limit() -> None:
    cluster = settings(instance_types=["p5.4xlarge", "g6.xlarge"], max_price_per_hour=2)
    facts = MarketFacts(
        {"g6.xlarge": ("us-east-1a", "us-east-1b"), "p5.4xlarge": ("us-east-1a",)},
        {("g6.xlarge", "us-east-1b"): (0.5, "spot history", "2026-01-01")},
        {"g6.xlarge": 3},
    )

    offers = make_offers(read_settings(cluster), facts)

    assert [(offer.type, offer.zone, offer.price_per_hour, offer.quota_left) for offer in offers] == [
        ("g6.xlarge", "us-east-1b", 0.5, 3),
        ("g6.xlarge", "us-east-1a", 0.8048, 3),
    ]  # fmt: skip


def test_without_aws_prices_come_from_the_dated_table() -> None:
    [offer] = make_offers(read_settings(settings(availability_model="spot")), MarketFacts())
    assert (offer.zone, offer.price_source, offer.price_date) == ("", "built-in table (on-demand)", "2025-06-15")  # fmt: skip
    assert (offer.availability, offer.quota_left) == ("spot", None)
