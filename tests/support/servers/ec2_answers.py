"""Responses that moto lacks: prices, quotas, deep-learning AMIs, placement groups, reservations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

from tests.support.servers.ec2_requests import ApiAnswer, ApiFailure, ApiRequest

Params = Mapping[str, Any]
_PRICES = {
    "t3.micro": 0.0104, "g5.xlarge": 1.006, "g6.xlarge": 0.8048, "p4d.24xlarge": 21.96,
}  # fmt: skip
"""Dollars an hour of an on-demand instance."""
_QUOTAS = {"L-417A185B": 192, "L-7212CCBC": 192, "L-DB2E81BA": 64, "L-3819A6DF": 64, "L-1216C47A": 640, "L-34B43A08": 640}  # fmt: skip
"""vCPUs: on-demand P, spot P, on-demand G and VT, spot G and VT, on-demand and spot standard."""


@dataclass
class AccountData:
    """Resources of the account."""

    image: str
    """AMI of every SSM parameter below ``/aws/service/deeplearning/``."""
    placement_groups: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags by name."""
    reservations: dict[str, str] = field(default_factory=dict)
    """Zone of each capacity reservation."""

    def answer(self, request: ApiRequest) -> ApiAnswer | None:
        """Return the response, or None if moto has to answer."""
        build = _ANSWERS.get((request.service, request.action))
        body = build(self, request.params, request.region) if build else None
        if body is None:
            return None
        if request.service != "ec2":
            kind = ("Content-Type", "application/x-amz-json-1.1")
            return ApiAnswer(200, json.dumps(body).encode(), [kind])
        name = f"{request.action}Response"
        space = "http://ec2.amazonaws.com/doc/2016-11-15/"
        text = f'<{name} xmlns="{space}"><requestId>{uuid4()}</requestId>{_xml(body)}</{name}>'
        return ApiAnswer(200, text.encode(), [("Content-Type", "text/xml")])


def _xml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{name}>{_xml(member)}</{name}>" for name, member in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{_xml(member)}</item>" for member in value)
    return escape(str(value))


def _named_list(params: Params, name: str) -> list[str]:
    """Return a list of a query request: ``InstanceType.1``, ``InstanceType.2`` …."""
    return [str(params[key]) for key in params if re.fullmatch(rf"{name}\.\d+", key)]


def _by_name(params: Params, name: str, value: str) -> dict[str, str]:
    """Return names and values of a query request: ``Filter.1.Name`` and ``Filter.1.Value.1`` …."""
    parts = [re.fullmatch(rf"(.+\.\d+\.){name}", key) for key in params]
    return {params[part[0]]: params[part[1] + value] for part in parts if part}


def _group(name: str) -> dict[str, str]:
    return {"groupName": name, "strategy": "cluster", "state": "available"}


def _create_group(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    name = params["GroupName"]
    if name in data.placement_groups:
        raise ApiFailure("InvalidPlacementGroup.Duplicate", f"group {name} exists")
    data.placement_groups[name] = _by_name(params, "Key", "Value")
    return {"placementGroup": _group(name)}


def _describe_groups(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    tags = {k.removeprefix("tag:"): v for k, v in _by_name(params, "Name", "Value.1").items()}
    groups = data.placement_groups.items()
    return {
        "placementGroupSet": [_group(name) for name, own in groups if tags.items() <= own.items()]
    }


def _delete_group(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    del data.placement_groups[params["GroupName"]]
    return {"return": "true"}


def _reservations(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    names = _named_list(params, "CapacityReservationId")
    return {"capacityReservationSet": [
        {"capacityReservationId": name, "availabilityZone": data.reservations[name], "state": "active"}
        for name in names
    ]}  # fmt: skip


def _products(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    (kind,) = (each["Value"] for each in params["Filters"] if each["Field"] == "instanceType")
    price = {"unit": "Hrs", "pricePerUnit": {"USD": str(_PRICES.get(kind, 0))}}
    product = {"terms": {"OnDemand": {"A": {"priceDimensions": {"B": price}}}}}
    return {"PriceList": [json.dumps(product)] if kind in _PRICES else []}


def _quota(data: AccountData, params: Params, region: str) -> dict[str, Any]:
    return {"Quota": {"QuotaCode": params["QuotaCode"], "Value": _QUOTAS[params["QuotaCode"]]}}


def _parameter(data: AccountData, params: Params, region: str) -> dict[str, Any] | None:
    if not params["Name"].startswith("/aws/service/deeplearning/"):
        return None
    return {"Parameter": {"Name": params["Name"], "Type": "String", "Value": data.image}}


_ANSWERS: dict[
    tuple[str, str], Callable[[AccountData, Params, str], dict[str, Any] | None]
] = {
    ("ec2", "CreatePlacementGroup"): _create_group,
    ("ec2", "DescribePlacementGroups"): _describe_groups,
    ("ec2", "DeletePlacementGroup"): _delete_group,
    ("ec2", "DescribeCapacityReservations"): _reservations,
    ("pricing", "GetProducts"): _products,
    ("servicequotas", "GetServiceQuota"): _quota,
    ("ssm", "GetParameter"): _parameter,
}  # fmt: skip
"""By signing name of the service, and action."""
