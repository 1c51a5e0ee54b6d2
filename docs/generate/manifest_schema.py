"""``schemas/trainctl_schemas/v1/manifest.json``, from the types of the manifest."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter

from trainctl.model.specs.checks import OTHERS, CheckedSection, key_of
from trainctl.model.specs.document import Manifest

_ID = "https://trainctl.dev/schemas/v1/manifest.json"


def manifest_schema() -> dict[str, Any]:
    """The schema, as editors use it: a value that is not text may also be one whole ``${{ … }}``."""
    schema = TypeAdapter(Manifest).json_schema()
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
    for section in _sections(CheckedSection):
        made = schema if section is Manifest else schema["$defs"].get(section.__name__, {})
        properties = made.get("properties", {})
        texts = _docstrings(section)
        for field in fields(section):
            key = key_of(field)
            if key in properties and field.name in texts:
                described = {**properties[key], "description": texts[field.name]}
                properties[key] = dict(sorted(described.items()))
        if OTHERS in properties:
            made["additionalProperties"] = properties.pop(OTHERS)["additionalProperties"]


def _sections(section: type[Any]) -> Iterator[type[Any]]:
    for below in section.__subclasses__():
        yield below
        yield from _sections(below)


def _docstrings(section: type[Any]) -> dict[str, str]:
    """What stands below each field, inherited ones too."""
    found: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if not issubclass(each, CheckedSection) or each is CheckedSection:
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
