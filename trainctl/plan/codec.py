"""A plan's values to JSON and back, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.desired.saved import lifecycle_from_json
from trainctl.model.action import Action, Reason
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, Position, Severity
from trainctl.plan.values import (
    Change,
    CodeTree,
    DeliveryLine,
    Drift,
    ImageLine,
    LiveRun,
    Options,
    Plan,
    TierFacts,
    WeightsLine,
)

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Any value of a plan as JSON: addresses as text, actions by name, sequences as lists; no field that is not compared."""
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, Action):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {
            field.name: to_json(getattr(value, field.name))
            for field in fields(value)
            if field.compare
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """Read what ``to_json`` made of a plan; KeyError, TypeError, ValueError or AttributeError where it is something else."""
    return Plan(
        lineage=value["lineage"],
        serial=value["serial"],
        manifest_digest=value["manifest_digest"],
        changes=_each(_change, value["changes"]),
        drift=_each(_drift, value["drift"]),
        weights=_each(_weights, value["weights"]),
        deliveries=_each(_delivery, value["deliveries"]),
        images=_each(_image, value.get("images", ())),
        resolved={Address.parse(key): _resolved(one) for key, one in value["resolved"].items()},
        code={Address.parse(key): _code(one) for key, one in value["code"].items()},
        hourly_cost=value["hourly_cost"],
        diagnostics=_each(_diagnostic, value["diagnostics"]),
        options=_options(value["options"]),
        digest=value["digest"],
    )


def _each(
    read: Callable[[Mapping[str, Any]], T], values: Iterable[Mapping[str, Any]]
) -> tuple[T, ...]:
    return tuple(read(one) for one in values)


def _addresses(values: Iterable[str]) -> tuple[Address, ...]:
    return tuple(Address.parse(one) for one in values)


def _change(value: Mapping[str, Any]) -> Change:
    return Change(
        **{
            **value,
            "address": Address.parse(value["address"]),
            "action": Action[value["action"].upper()],
            "reason": Reason(value["reason"]) if value["reason"] else None,
            "replace_paths": tuple(tuple(path) for path in value["replace_paths"]),
            "depends_on": _addresses(value["depends_on"]),
            "lifecycle": lifecycle_from_json(value["lifecycle"]),
            "stops": LiveRun(**value["stops"]) if value["stops"] else None,
        }
    )


def _drift(value: Mapping[str, Any]) -> Drift:
    return Drift(**{**value, "address": Address.parse(value["address"])})


def _weights(value: Mapping[str, Any]) -> WeightsLine:
    return WeightsLine(**{**value, "address": Address.parse(value["address"])})


def _delivery(value: Mapping[str, Any]) -> DeliveryLine:
    return DeliveryLine(
        **{
            **value,
            "job": Address.parse(value["job"]),
            "weights": Address.parse(value["weights"]),
            "tiers": TierFacts(**value["tiers"]) if value["tiers"] else None,
        }
    )


def _image(value: Mapping[str, Any]) -> ImageLine:
    return ImageLine(**{**value, "job": Address.parse(value["job"])})


def _resolved(value: Mapping[str, Any]) -> ResolvedSource:
    files = tuple(SourceFile(**one) for one in value["files"])
    return ResolvedSource(
        value["source"],
        value["revision"],
        files,
        known_as=value.get("known_as"),
        versions=value.get("versions"),
        endpoint=value.get("endpoint"),
    )


def _code(value: Mapping[str, Any]) -> CodeTree:
    return CodeTree(**{**value, "left_out": tuple(value["left_out"])})


def _diagnostic(value: Mapping[str, Any]) -> Diagnostic:
    where = Position(**value["where"]) if value["where"] else None
    return Diagnostic(**{**value, "severity": Severity(value["severity"]), "where": where})


def _options(value: Mapping[str, Any]) -> Options:
    names = ("targets", "excludes", "replace", "run")
    return Options(**{**value, **{name: _addresses(value[name]) for name in names}})
