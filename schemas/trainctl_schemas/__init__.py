"""The public JSON Schemas: the manifest, and every machine-readable form that trainctl prints."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

VERSION = "v1"


def schema(name: str) -> dict[str, Any]:
    """The schema of that name, for example ``manifest``; KeyError names those there are."""
    resource = files(__name__) / VERSION / f"{name}.json"
    if name not in names():
        raise KeyError(f"no schema is called {name!r}; there is {', '.join(names())}")
    document: dict[str, Any] = json.loads(resource.read_text(encoding="utf-8"))
    return document


def names() -> list[str]:
    """The names of all schemas."""
    folder = files(__name__) / VERSION
    return sorted(
        entry.name.removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    )
