"""Offers: instance types and zones in the order in which they are tried, with prices and quotas."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.errors import NodeError
from trainctl.plugin_api.machines import Offer
from trainctl_aws.account import AwsAccount
from trainctl_aws.catalog import PRICE_DATE, PRICE_REGION, TYPES, ServiceQuota, quota_of
from trainctl_aws.settings import AwsSettings

_SECONDS = 6.0
_RETRY_SECONDS = 3.0
Price = tuple[float | None, str, str]
"""Price per hour, its source and date."""


@dataclass(frozen=True, slots=True)
class MarketFacts:
    """Answers of AWS about types; members are empty if it could not be asked."""

    zones: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By type."""
    prices: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    """By type and zone, '' for all zones."""
    machines_left: Mapping[str, int] = field(default_factory=dict)
    """By type, as the quota allows."""
    note: str = ""
    """Credentials in use, or why AWS could not be asked."""


def survey_market(settings: AwsSettings) -> MarketFacts:
    """Ask AWS for zones, prices and quotas at the same time; leave out what takes too long."""
    account = AwsAccount(settings.region, retry_seconds=_RETRY_SECONDS)
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
    """Return the offers in order of preference: by type, then by zone, or price if no zones are set.

    Offers above the price limit are left out.
    """
    offers = []
    for name in settings.instance_types:
        known = TYPES.get(name)
        of_type = [
            Offer(
                type=name,
                gpus=known.gpus if known else 0,
                gpu_kind=known.gpu_kind if known else "",
                zone=zone,
                price_per_hour=amount,
                price_source=source,
                price_date=date,
                availability=settings.availability,
                quota_left=facts.machines_left.get(name),
                note=facts.note,
            )
            for zone in (facts.zones.get(name, ()) if facts.zones else settings.zones or ("",))
            for amount, source, date in [_price(settings, facts, name, zone)]
        ]
        if not settings.zones:
            of_type.sort(key=lambda offer: (offer.price_per_hour or 0.0, offer.zone))
        offers += of_type
    # EC2 itself compares spot prices with the limit; the table has on-demand prices.
    limit = settings.max_price_per_hour or math.inf
    exempt = PRICE_DATE if settings.spot else None
    return [o for o in offers if (o.price_per_hour or 0) <= limit or o.price_date == exempt]


def _price(settings: AwsSettings, facts: MarketFacts, name: str, zone: str) -> Price:
    if settings.capacity_block:
        return None, "paid in advance", ""
    if found := facts.prices.get((name, zone)) or facts.prices.get((name, "")):
        return found
    if name not in TYPES:
        return None, "unknown", ""
    model = ("on-demand",) if settings.spot else ()
    region = () if settings.region == PRICE_REGION else (PRICE_REGION,)
    words = ", ".join((*model, *region))
    source = f"built-in table ({words})" if words else "built-in table"
    return TYPES[name].price, source, PRICE_DATE


def _zones(account: AwsAccount, settings: AwsSettings) -> dict[str, list[str]]:
    found = account.describe(
        "instance_type_offerings",
        {"instance-type": settings.instance_types},
        LocationType="availability-zone",
    )
    offered = {(item["InstanceType"], item["Location"]) for item in found}
    allowed = set(subnet_zones(account, settings))
    if reserved := settings.capacity_block or settings.capacity_reservation:
        answer = account.ec2("describe_capacity_reservations", CapacityReservationIds=[reserved])
        allowed &= {item["AvailabilityZone"] for item in answer["CapacityReservations"]}
    zones = [zone for zone in settings.zones or sorted(allowed) if zone in allowed]
    return {
        name: [zone for zone in zones if (name, zone) in offered]
        for name in settings.instance_types
    }


def subnet_zones(account: AwsAccount, settings: AwsSettings) -> dict[str, dict[str, Any]]:
    """Return the subnet to use by zone: those of the settings, or the default VPC's."""
    if settings.subnet:
        found = account.ec2("describe_subnets", SubnetIds=list(settings.subnet))["Subnets"]
    else:
        vpcs = account.describe("vpcs", {"is-default": ["true"]})
        if not vpcs:
            raise NodeError(
                f"{settings.region} has no default VPC", "Set subnet.", code="cloud-no-network"
            )
        found = account.describe("subnets", {"vpc-id": [vpcs[0]["VpcId"]]})
    return {subnet["AvailabilityZone"]: subnet for subnet in found}


def _listed_prices(account: AwsAccount, settings: AwsSettings) -> dict[tuple[str, str], Price]:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    prices: dict[tuple[str, str], Price] = {}
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
                prices[name, ""] = amount, "price list", today
    return prices


def _spot_prices(account: AwsAccount, settings: AwsSettings) -> dict[tuple[str, str], Price]:
    found = account.describe(
        "spot_price_history",
        {},
        InstanceTypes=list(settings.instance_types),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC),  # the prices in force
    )
    return {
        (item["InstanceType"], item["AvailabilityZone"]): (
            float(item["SpotPrice"]), "spot history", f"{item['Timestamp']:%Y-%m-%d}",
        )
        for item in sorted(found, key=lambda item: str(item["Timestamp"]))
    }  # fmt: skip


def _machines_left(account: AwsAccount, settings: AwsSettings) -> dict[str, int]:
    """Return how many more machines of each type the quota allows."""
    if settings.capacity_block:
        return {}
    quotas = {
        name: quota_of(name, spot=settings.spot)
        for name in settings.instance_types
        if name in TYPES
    }
    left: dict[ServiceQuota, float] = {}
    for quota in set(quotas.values()):
        query = {"ServiceCode": "ec2", "QuotaCode": quota.code}
        found = account.call("service-quotas", "get_service_quota", **query)
        left[quota] = found["Quota"]["Value"]
    for instance in account.instances({}, ("pending", "running")):
        name, is_spot = instance["InstanceType"], instance.get("InstanceLifecycle") == "spot"
        quota = quota_of(name, spot=settings.spot)
        if quota in left and is_spot == settings.spot:
            known, cpus = TYPES.get(name), instance.get("CpuOptions", {})
            left[quota] -= known.vcpus if known else cpus["CoreCount"] * cpus["ThreadsPerCore"]
    return {name: max(0, int(left[quota]) // TYPES[name].vcpus) for name, quota in quotas.items()}
