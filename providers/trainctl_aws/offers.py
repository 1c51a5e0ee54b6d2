"""Offers: instance types and zones in the order in which they are tried, with prices and quotas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError
from trainctl.plugin_api.machines import Offer
from trainctl_aws.account import AwsAccount, find_instances
from trainctl_aws.catalog import (
    PRICE_DATE,
    PRICE_REGION,
    TYPES,
    ServiceQuota,
    quota_of,
)
from trainctl_aws.settings import AwsSettings

_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class ListedPrice:
    """A price per hour, its source and date."""

    amount: float | None
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class MarketFacts:
    """Answers of AWS about types; members are empty if it could not be asked.

    ``zones`` by type, ``prices`` by type and zone ('' for all zones), ``machines_left`` by type.
    """

    zones: Mapping[str, tuple[str, ...]]
    prices: Mapping[tuple[str, str], ListedPrice]
    machines_left: Mapping[str, int]
    note: str = ""
    """Credentials in use, or why AWS could not be asked."""


NO_FACTS = MarketFacts({}, {}, {})


def survey_market(account: AwsAccount, settings: AwsSettings) -> MarketFacts:
    """Ask AWS for zones, prices and quotas at the same time; leave out what takes too long."""
    pool = ThreadPoolExecutor(3, thread_name_prefix="aws-offers")
    queries = (_zones, _spot_prices if settings.spot else _listed_prices, _machines_left)
    zones, prices, left = asked = [pool.submit(query, account, settings) for query in queries]
    wait(asked, _SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    return MarketFacts(_answer(zones), _answer(prices), _answer(left), _note(account, zones))


def _answer(asked: Future[Any]) -> Any:
    unanswered = (NodeError, LookupError, ValueError)
    is_known = asked.done() and not isinstance(asked.exception(), unanswered)
    return asked.result() if is_known else {}


def _note(account: AwsAccount, zones: Future[Any]) -> str:
    """Return the source of the credentials, or why AWS could not be asked."""
    failure = zones.exception() if zones.done() else NodeError("AWS does not respond")
    if isinstance(failure, NodeError):
        return f"{failure.summary}; zones and quotas are unknown"
    return f"AWS credentials: {account.credentials()}"


def make_offers(settings: AwsSettings, facts: MarketFacts) -> list[Offer]:
    """Return the offers in order of preference: by type, then by zone.

    Offers above the price limit are left out.
    """
    offers = []
    for name in settings.instance_types:
        known = TYPES.get(name)
        for zone in _ordered_zones(settings, facts, name):
            price = _price(settings, facts, name, zone)
            limit, amount = settings.max_price_per_hour, price.amount
            # EC2 itself compares spot prices with the limit; without them, the table has on-demand prices
            is_known = not settings.spot or price.date != PRICE_DATE
            if limit is not None and amount is not None and amount > limit and is_known:
                continue
            offer = Offer(
                type=name,
                gpus=known.gpus if known else 0,
                gpu_kind=known.gpu_kind if known else "",
                zone=zone,
                price_per_hour=price.amount,
                price_source=price.source,
                price_date=price.date,
                availability=settings.availability,
                quota_left=facts.machines_left.get(name),
                note=facts.note,
            )
            offers.append(offer)
    return offers


def _ordered_zones(settings: AwsSettings, facts: MarketFacts, name: str) -> Sequence[str]:
    """Return the zones for a type; '' is any zone. Zones without a preference go by price."""
    offered = facts.zones.get(name)
    if offered is None:
        return () if facts.zones else settings.zones or ("",)
    if settings.zones:
        return [zone for zone in settings.zones if zone in offered]
    prices = {zone: _price(settings, facts, name, zone).amount or 0.0 for zone in offered}
    return sorted(offered, key=lambda zone: (prices[zone], zone))


def _price(settings: AwsSettings, facts: MarketFacts, name: str, zone: str) -> ListedPrice:
    if settings.capacity_block:
        return ListedPrice(None, "paid in advance", "")
    found = facts.prices.get((name, zone)) or facts.prices.get((name, ""))
    if found is not None:
        return found
    known = TYPES.get(name)
    if known is None:
        return ListedPrice(None, "unknown", "")
    model = ("on-demand",) if settings.spot else ()
    region = () if settings.region == PRICE_REGION else (PRICE_REGION,)
    words = ", ".join((*model, *region))
    source = f"built-in table ({words})" if words else "built-in table"
    return ListedPrice(known.price, source, PRICE_DATE)


def _zones(account: AwsAccount, settings: AwsSettings) -> dict[str, tuple[str, ...]]:
    found = account.ec2_items(
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(settings.instance_types)}],
    )
    allowed = set(subnet_zones(account, settings))
    if reserved := settings.capacity_block or settings.capacity_reservation:
        answer = account.ec2("describe_capacity_reservations", CapacityReservationIds=[reserved])
        allowed &= {item["AvailabilityZone"] for item in answer["CapacityReservations"]}
    zones: dict[str, tuple[str, ...]] = {}
    for item in sorted(found, key=lambda item: str(item["Location"])):
        if item["Location"] in allowed:
            name = item["InstanceType"]
            zones[name] = (*zones.get(name, ()), item["Location"])
    return zones


def subnet_zones(account: AwsAccount, settings: AwsSettings) -> dict[str, dict[str, Any]]:
    """Return the subnet to use by zone: those of the settings, or the default VPC's."""
    if settings.subnet:
        found = account.ec2("describe_subnets", SubnetIds=list(settings.subnet))["Subnets"]
    else:
        vpcs = account.ec2("describe_vpcs", Filters=[{"Name": "is-default", "Values": ["true"]}])
        if not vpcs["Vpcs"]:
            raise NodeError(
                f"{settings.region} has no default VPC", "Set subnet.", code="cloud-no-network"
            )
        in_vpc = {"Name": "vpc-id", "Values": [vpcs["Vpcs"][0]["VpcId"]]}
        found = account.ec2_items("describe_subnets", "Subnets", Filters=[in_vpc])
    return {subnet["AvailabilityZone"]: subnet for subnet in found}


def _listed_prices(
    account: AwsAccount, settings: AwsSettings
) -> dict[tuple[str, str], ListedPrice]:
    today, prices = f"{datetime.now(UTC):%Y-%m-%d}", {}
    for name in settings.instance_types:
        fields = {
            "instanceType": name, "regionCode": settings.region, "operatingSystem": "Linux",
            "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
        }  # fmt: skip
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
        found = account.call("pricing", "get_products", ServiceCode="AmazonEC2", Filters=filters)
        for text in found["PriceList"]:
            terms = json.loads(text).get("terms", {}).get("OnDemand", {}).values()
            hourly = (
                float(dimension["pricePerUnit"]["USD"])
                for term in terms
                for dimension in term["priceDimensions"].values()
                if dimension["unit"] == "Hrs"
            )
            if amount := next(hourly, 0.0):
                prices[name, ""] = ListedPrice(amount, "price list", today)
    return prices


def _spot_prices(account: AwsAccount, settings: AwsSettings) -> dict[tuple[str, str], ListedPrice]:
    now = datetime.now(UTC)
    found = account.ec2_items(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(settings.instance_types),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now,  # the prices in force
    )
    return {
        (item["InstanceType"], item["AvailabilityZone"]): ListedPrice(
            float(item["SpotPrice"]), "spot history", f"{item['Timestamp']:%Y-%m-%d}"
        )
        for item in sorted(found, key=lambda item: str(item["Timestamp"]))
    }


def _machines_left(account: AwsAccount, settings: AwsSettings) -> dict[str, int]:
    """Return how many more machines of each type the quota allows."""
    if settings.capacity_block:
        return {}
    quotas = {name: quota_of(name, spot=settings.spot) for name in settings.instance_types}
    values: dict[ServiceQuota, float] = {}
    for quota in set(quotas.values()):
        query = {"ServiceCode": "ec2", "QuotaCode": quota.code}
        found = account.call("service-quotas", "get_service_quota", **query)
        values[quota] = float(found["Quota"]["Value"])
    for instance in find_instances(account, (), ("pending", "running")):
        if (instance.get("InstanceLifecycle") == "spot") == settings.spot:
            name = instance["InstanceType"]
            quota, known = quota_of(name, spot=settings.spot), TYPES.get(name)
            options = instance.get("CpuOptions") or {}
            own = options.get("CoreCount", 1) * options.get("ThreadsPerCore", 2)
            if quota in values:
                values[quota] -= known.vcpus if known else own
    return {
        name: max(0, int(values[quota]) // TYPES[name].vcpus)
        for name, quota in quotas.items()
        if name in TYPES
    }
