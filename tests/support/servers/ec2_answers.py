"""Answers for requests that moto lacks or answers unusably: prices, quotas, deep-learning AMIs, placement groups, reservations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

from tests.support.servers.ec2_requests import ApiAnswer, ApiFailure, ApiRequest

Params = Mapping[str, Any]


@dataclass
class AccountData:
    """Prices, quotas and resources of the account; tests may change all of them."""

    on_demand: dict[str, float] = field(
        default_factory=lambda: {
            "t3.micro": 0.0104, "g5.xlarge": 1.006, "g6.xlarge": 0.8048, "p4d.24xlarge": 21.96, "p5.48xlarge": 55.04,
        }
    )  # fmt: skip
    """Dollars an hour by instance type."""
    spot: dict[tuple[str, str], float] = field(default_factory=dict)
    """Dollars an hour by instance type and zone; the default is 40 % of the on-demand price."""
    quotas: dict[str, float] = field(
        default_factory=lambda: {
            "L-417A185B": 192.0, "L-7212CCBC": 192.0, "L-DB2E81BA": 64.0, "L-3819A6DF": 64.0, "L-1216C47A": 640.0,
        }
    )  # fmt: skip
    """Service quotas of EC2 in vCPUs: on-demand P, spot P, on-demand G and VT, spot G and VT, on-demand standard."""
    image: str = ""
    """AMI of every SSM parameter below ``/aws/service/deeplearning/``; by default an Ubuntu image of moto."""
    placement_groups: dict[str, str] = field(default_factory=dict)
    """Strategy by name."""
    reservations: dict[str, dict[str, str]] = field(default_factory=dict)
    """Capacity reservations by ID, with fields as in the response."""
    scores: dict[str, int] = field(default_factory=dict)
    """Spot placement scores by region; the default is 9."""

    def answer(self, request: ApiRequest) -> ApiAnswer | None:
        """Return the response, or None if moto has to answer."""
        build = _ANSWERS.get(request.action)
        if build is None or request.service != _SERVICES.get(request.action, "ec2"):
            return None
        body = build(self, request.params, request.region)
        kind = "text/xml" if request.service == "ec2" else "application/x-amz-json-1.1"
        return None if body is None else ApiAnswer(200, body, [("Content-Type", kind)])


def named_list(params: Params, name: str) -> list[str]:
    """Return a list of a query request: ``InstanceType.1``, ``InstanceType.2`` …."""
    return [str(params[key]) for key in params if re.fullmatch(rf"{name}\.\d+", key)]


def filters(params: Params) -> dict[str, list[str]]:
    """Return the filters of a query request by name."""
    numbers = [key.split(".")[1] for key in params if re.fullmatch(r"Filter\.\d+\.Name", key)]
    return {params[f"Filter.{n}.Name"]: named_list(params, rf"Filter\.{n}\.Value") for n in numbers}


def xml_response(action: str, body: str) -> bytes:
    """Return a response of EC2's query protocol."""
    name = f"{action}Response"
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    return f'<{name} xmlns="{space}"><requestId>{uuid4()}</requestId>{body}</{name}>'.encode()


def _items(rows: list[dict[str, Any]]) -> str:
    return "".join(
        "<item>" + "".join(f"<{key}>{escape(str(row[key]))}</{key}>" for key in row) + "</item>"
        for row in rows
    )


def _spot_prices(data: AccountData, params: Params, region: str) -> bytes:
    wanted = named_list(params, "InstanceType") or filters(params).get("instance-type", [])
    zones = filters(params).get("availability-zone", [])
    if "AvailabilityZone" in params:
        zones = [params["AvailabilityZone"]]
    rows = [
        {
            "instanceType": kind, "productDescription": "Linux/UNIX", "availabilityZone": zone,
            "spotPrice": f"{data.spot.get((kind, zone), data.on_demand[kind] * 0.4):.6f}",
            "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        for kind in wanted or data.on_demand
        if kind in data.on_demand
        for zone in zones or [region + letter for letter in "abc"]
    ]  # fmt: skip
    body = f"<spotPriceHistorySet>{_items(rows)}</spotPriceHistorySet><nextToken/>"
    return xml_response("DescribeSpotPriceHistory", body)


def _spot_scores(data: AccountData, params: Params, region: str) -> bytes:
    regions = named_list(params, "RegionName") or [region]
    rows = [{"region": name, "score": data.scores.get(name, 9)} for name in regions]
    body = f"<spotPlacementScoreSet>{_items(rows)}</spotPlacementScoreSet>"
    return xml_response("GetSpotPlacementScores", body)


def _groups(data: AccountData, names: list[str]) -> str:
    rows = [
        {"groupName": name, "strategy": data.placement_groups[name], "state": "available", "groupId": f"pg-{name}"}
        for name in names
    ]  # fmt: skip
    return _items(rows)


def _create_group(data: AccountData, params: Params, region: str) -> bytes:
    name = params["GroupName"]
    if name in data.placement_groups:
        raise ApiFailure(
            "InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists"
        )
    data.placement_groups[name] = params.get("Strategy", "cluster")
    body = _groups(data, [name]).replace("item>", "placementGroup>")
    return xml_response("CreatePlacementGroup", f"<return>true</return>{body}")


def _describe_groups(data: AccountData, params: Params, region: str) -> bytes:
    names = named_list(params, "GroupName") + filters(params).get("group-name", [])
    for name in named_list(params, "GroupName"):
        _check_group(data, name)
    found = [name for name in data.placement_groups if not names or name in names]
    body = f"<placementGroupSet>{_groups(data, found)}</placementGroupSet>"
    return xml_response("DescribePlacementGroups", body)


def _delete_group(data: AccountData, params: Params, region: str) -> bytes:
    _check_group(data, params["GroupName"])
    del data.placement_groups[params["GroupName"]]
    return xml_response("DeletePlacementGroup", "<return>true</return>")


def _check_group(data: AccountData, name: str) -> None:
    if name not in data.placement_groups:
        raise ApiFailure(
            "InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown."
        )


def _create_reservation(data: AccountData, params: Params, region: str) -> bytes:
    name = f"cr-{uuid4().hex[:17]}"
    count = params["InstanceCount"]
    data.reservations[name] = {
        "capacityReservationId": name, "instanceType": params["InstanceType"], "state": "active",
        "instancePlatform": params["InstancePlatform"], "availabilityZone": params.get("AvailabilityZone", region + "a"),
        "totalInstanceCount": count, "availableInstanceCount": count,
        "instanceMatchCriteria": params.get("InstanceMatchCriteria", "open"), "reservationType": "default",
    }  # fmt: skip
    body = _items([data.reservations[name]]).replace("item>", "capacityReservation>")
    return xml_response("CreateCapacityReservation", body)


def _describe_reservations(data: AccountData, params: Params, region: str) -> bytes:
    names = named_list(params, "CapacityReservationId")
    for name in names:
        _check_reservation(data, name)
    wanted = filters(params)
    rows = [
        row
        for name, row in data.reservations.items()
        if (not names or name in names)
        and row["instanceType"] in wanted.get("instance-type", [row["instanceType"]])
        and row["state"] in wanted.get("state", [row["state"]])
    ]
    body = f"<capacityReservationSet>{_items(rows)}</capacityReservationSet>"
    return xml_response("DescribeCapacityReservations", body)


def _cancel_reservation(data: AccountData, params: Params, region: str) -> bytes:
    _check_reservation(data, params["CapacityReservationId"])
    data.reservations[params["CapacityReservationId"]]["state"] = "cancelled"
    return xml_response("CancelCapacityReservation", "<return>true</return>")


def _check_reservation(data: AccountData, name: str) -> None:
    if name not in data.reservations:
        raise ApiFailure(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation '{name}' does not exist.",
        )


def _products(data: AccountData, params: Params, region: str) -> bytes:
    """Return the on-demand prices of Linux, with one term each."""
    wanted = {each["Field"]: each["Value"] for each in params.get("Filters", [])}
    products = [
        {
            "product": {"productFamily": "Compute Instance", "attributes": {
                "instanceType": kind, "regionCode": wanted.get("regionCode", region), "operatingSystem": "Linux",
                "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand",
            }},
            "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": {
                "unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"},
            }}}}},
        }
        for kind, price in data.on_demand.items()
        if wanted.get("instanceType", kind) == kind
    ]  # fmt: skip
    return json.dumps(
        {"FormatVersion": "aws_v1", "PriceList": [json.dumps(each) for each in products]}
    ).encode()


def _quota(data: AccountData, params: Params, region: str) -> bytes:
    code = params["QuotaCode"]
    if params["ServiceCode"] != "ec2" or code not in data.quotas:
        raise ApiFailure(
            "NoSuchResourceException", f"The request failed because quota {code} does not exist."
        )
    quota = {
        "ServiceCode": "ec2",
        "QuotaCode": code,
        "Value": data.quotas[code],
        "Unit": "None",
        "Adjustable": True,
    }
    return json.dumps({"Quota": quota}).encode()


def _parameter(data: AccountData, params: Params, region: str) -> bytes | None:
    name = params["Name"]
    if not name.startswith("/aws/service/deeplearning/"):
        return None
    found = {
        "Name": name,
        "Type": "String",
        "Value": data.image,
        "Version": 1,
        "DataType": "aws:ec2:image",
    }
    return json.dumps({"Parameter": found}).encode()


_SERVICES = {"GetProducts": "pricing", "GetServiceQuota": "servicequotas", "GetParameter": "ssm"}
"""Signing names of services other than EC2."""
_ANSWERS: dict[str, Callable[[AccountData, Params, str], bytes | None]] = {
    "DescribeSpotPriceHistory": _spot_prices,
    "GetSpotPlacementScores": _spot_scores,
    "CreatePlacementGroup": _create_group,
    "DescribePlacementGroups": _describe_groups,
    "DeletePlacementGroup": _delete_group,
    "CreateCapacityReservation": _create_reservation,
    "DescribeCapacityReservations": _describe_reservations,
    "CancelCapacityReservation": _cancel_reservation,
    "GetProducts": _products,
    "GetServiceQuota": _quota,
    "GetParameter": _parameter,
}
