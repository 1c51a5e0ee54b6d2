"""JSON Schemas of the manifest and of all JSON output of trainctl.

``schema`` loads one by name, ``names`` lists them; the files are in ``v1``.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

VERSION = "v1"


def schema(name: str) -> dict[str, Any]:
    """Load a schema, for example ``manifest``; raise KeyError if unknown."""
    resource = files(__name__) / VERSION / f"{name}.json"
    if name not in names():
        raise KeyError(f"unknown schema {name!r}; use one of {', '.join(names())}")
    document: dict[str, Any] = json.loads(resource.read_text(encoding="utf-8"))
    return document


def names() -> list[str]:
    """Return the names of all schemas."""
    folder = files(__name__) / VERSION
    return sorted(
        entry.name.removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    )
