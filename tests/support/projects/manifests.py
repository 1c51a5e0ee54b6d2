"""Manifests for tests: text to the desired state, or to its problems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.desired.build import build
from trainctl.desired.values import DesiredState
from trainctl.errors import ManifestError
from trainctl.manifest.read import read
from trainctl.model.address import Address
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
    """The desired state of a manifest of one file."""
    (directory / name).write_text(text, encoding="utf-8")
    return build(read(directory), provider_schema=schema_of, providers=["local"], **options)


def problems(
    directory: Path, text: str, name: str = "trainctl.yaml", **options: Any
) -> list[Diagnostic]:
    """The problems of a manifest of one file."""
    try:
        desired(directory, text, name, **options)
    except ManifestError as failure:
        return [problem for problem in failure.diagnostics if isinstance(problem, Diagnostic)]
    return []


def attributes(state: DesiredState, address: str) -> Mapping[str, Any]:
    return state.resources[Address.read(address)].attributes
