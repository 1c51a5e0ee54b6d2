"""Manifests for tests: text to what it asks for, or to what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.desired.build import build
from trainctl.desired.values import DesiredState
from trainctl.errors import ManifestError
from trainctl.manifest.read import read
from trainctl.model.diagnostics import Diagnostic

LOCAL: JsonObject = {
    "type": "object",
    "properties": {
        "nodes": {"type": "integer", "minimum": 1, "default": 1},
        "gpus": {"type": "integer", "minimum": 0, "default": 0},
    },
    "additionalProperties": False,
}


def schema_of(provider: str) -> JsonObject | None:
    """Only ``local`` is installed."""
    return LOCAL if provider == "local" else None


def desired(
    directory: Path, text: str, name: str = "trainctl.yaml", **options: Any
) -> DesiredState:
    """What a manifest of one file asks for."""
    (directory / name).write_text(text, encoding="utf-8")
    return build(read(directory), provider_schema=schema_of, providers=["local"], **options)


def problems(
    directory: Path, text: str, name: str = "trainctl.yaml", **options: Any
) -> list[Diagnostic]:
    """What is wrong with a manifest of one file; nothing if it is right."""
    try:
        desired(directory, text, name, **options)
    except ManifestError as failure:
        return [one for one in failure.diagnostics if isinstance(one, Diagnostic)]
    return []


def summaries_by_position(found: list[Diagnostic]) -> dict[str, str]:
    """Summaries by place, ``LINE:COLUMN``."""
    return {
        f"{one.where.line}:{one.where.column}" if one.where else "": one.summary for one in found
    }


def attributes(wish: DesiredState, address: str) -> Mapping[str, Any]:
    """The attributes of one resource."""
    return next(
        resource.attributes for key, resource in wish.resources.items() if str(key) == address
    )
