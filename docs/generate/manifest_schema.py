"""``schemas/trainctl_schemas/v1/manifest.json``, from the types of the manifest."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from trainctl.manifest.types.base import ManifestSection
from trainctl.manifest.types.document import Manifest
from trainctl.model.specs.checks import CheckedSection

_ID = "https://trainctl.dev/schemas/v1/manifest.json"


def manifest_schema() -> dict[str, Any]:
    """The schema, as editors use it: a value that is not text may also be one whole ``${{ … }}``."""
    schema = Manifest.model_json_schema(by_alias=True)
    _describe(schema)
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


def _describe(schema: dict[str, Any]) -> None:
    """Add each field's docstring; pydantic would read all sources at every start of a command."""
    for section in (*_sections(ManifestSection), *_sections(CheckedSection)):
        made = schema if section is Manifest else schema["$defs"].get(section.__name__, {})
        properties = made.get("properties", {})
        for name, text in _docstrings(section).items():
            fields = getattr(section, "model_fields", {})
            key = (fields[name].alias if name in fields else None) or name
            if key in properties:
                properties[key] = dict(sorted({**properties[key], "description": text}.items()))


def _sections(section: type[Any]) -> Iterator[type[Any]]:
    yield section
    for below in section.__subclasses__():
        yield from _sections(below)


def _docstrings(section: type[Any]) -> dict[str, str]:
    """What stands below each field, inherited ones too."""
    found: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if not issubclass(each, ManifestSection | CheckedSection) or each in (
            ManifestSection,
            CheckedSection,
        ):
            continue
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)  # noqa: S101 (the source of a class)
        for field, text in pairwise(body.body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = inspect.cleandoc(words)
    return found


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
