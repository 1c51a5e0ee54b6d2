"""The JSON Schema of a manifest, made from the types. ``python -m trainctl.manifest.schema`` prints it."""

from __future__ import annotations

import json
import sys
from typing import Any

from trainctl.manifest.types.document import Manifest

_ID = "https://trainctl.dev/schemas/v1/manifest.json"


def manifest_schema() -> dict[str, Any]:
    """The schema, as editors use it: a value that is not text may also be one whole ``${{ … }}``."""
    schema = Manifest.model_json_schema(by_alias=True)
    schema = _tidy(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        **schema,
        "title": "trainctl manifest",
    }


def schema_text() -> str:
    """The committed form."""
    return json.dumps(manifest_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(value: Any) -> Any:
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    tidy = {
        key: _tidy_entry(key, entry) for key, entry in value.items() if not _is_title(key, entry)
    }
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    expression = _expression(tidy)
    if expression is None:
        return tidy
    kept = {key: tidy.pop(key) for key in ("description", "default") if key in tidy}
    return {**kept, "anyOf": [tidy, expression]}


def _tidy_entry(key: str, entry: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _tidy(one) for name, one in entry.items()}
    if key == "description":
        return entry.replace("``", "`")
    return _tidy(entry)


def _is_title(key: str, entry: Any) -> bool:
    return key == "title" and isinstance(entry, str)


def _expression(schema: dict[str, Any]) -> dict[str, Any] | None:
    """What else may stand there: numbers and choices can't hold text, patterns would refuse an expression in it."""
    if schema.get("type") in ("integer", "number", "boolean") or "enum" in schema:
        return {"type": "string", "pattern": r"^\s*\$\{\{.*\}\}\s*$"}
    if schema.get("type") == "string" and "pattern" in schema:
        return {"type": "string", "pattern": r"\$\{\{"}
    return None


if __name__ == "__main__":
    sys.stdout.write(schema_text())
