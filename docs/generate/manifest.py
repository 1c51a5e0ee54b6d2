"""The manifest's JSON Schema, from the types of its sections, and ``docs/reference/manifest.md``, from the schema."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from docs.generate.json_output import simplified, type_name
from docs.generate.markdown import code, fence, prose, table, text_of
from trainctl.cli.commands.manifest import manifest_schema
from trainctl.manifest.fields import ANY, ManifestField, Steps, fields
from trainctl.model.specs.checks import OTHERS, CheckedSection, key_of
from trainctl.model.specs.document import Manifest
from trainctl_schemas import schema

EXAMPLES = Path(__file__).with_name("manifest_examples.yaml")
_INTRODUCTION = """\
# Manifest

A manifest is `trainctl.yaml`, `trainctl.toml` or several files `NAME.trainctl.yaml` in one directory.
`trainctl schema` prints its JSON Schema, and `trainctl explain FIELD` one part of this page.
Every value may contain expressions such as `${{ var.NAME }}`. In headings, `NAME` is a name you choose.
Paths skip the items of lists: `jobs.NAME.weights.source` is the source of one of the weights.
"""
_TRUST = """\
## Trust file

`~/.config/trainctl/trust.toml` says where manifests may send credentials and sets limits for every plan.
See [trust](../concepts/trust.md).
"""
_TRUST_EXAMPLE = """\
[[allow]]
secret = "bucket"
hosts = ["minio.example.com", "*.storage.example.com:9000"]

[[policy]]
name = "training budget"
max_hourly_cost = 40
sources = ["hf://acme/*", "file:*"]
"""


def page() -> str:
    """Return the text of the page."""
    known = fields(manifest_schema())
    lines = [_INTRODUCTION, *_keys(field for steps, field in known.items() if len(steps) == 1)]
    lines += _sections(known, examples())
    lines += [_TRUST, *_keys(fields(simplified(schema("trust"))).values(), whole=True)]
    lines += fence("toml", _TRUST_EXAMPLE)
    return text_of(lines)


def examples() -> dict[str, str]:
    """Manifests that show a section each, by the section's path."""
    found: dict[str, str] = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    return found


def _sections(known: Mapping[Steps, ManifestField], shown: Mapping[str, str]) -> Iterator[str]:
    """A section for each mapping; one that is like an earlier one refers to it."""
    titles: dict[tuple[str, ...], str] = {}
    for field in known.values():
        below = [known[(*field.steps, key)] for key in field.keys]
        if not below or field.keys == (ANY,):
            continue
        title = _path(field)
        rows = list(_keys(below))
        first = titles.setdefault((field.meaning, *rows), title)
        yield from (f"## {title}", "", *_text(field))
        if first != title:
            yield from (f"The keys are those of [`{first}`](#{_anchor(first)}).", "")
            continue
        yield from rows
        if title in shown:
            yield from fence("yaml", shown[title])


def _text(field: ManifestField) -> tuple[str, ...]:
    return (prose(field.meaning), "") if field.meaning else ()


def _keys(found: Any, *, whole: bool = False) -> list[str]:
    rows = (
        (code(_path(one) if whole else _name(one)), type_name(one.type), _default(one), prose(one.meaning))
        for one in found
    )  # fmt: skip
    return table(("key", "type", "default", "description"), rows)


def _name(field: ManifestField) -> str:
    return "NAME" if field.steps[-1] == ANY else field.steps[-1]


def _path(field: ManifestField) -> str:
    return ".".join("NAME" if step == ANY else step for step in field.steps)


def _anchor(title: str) -> str:
    return title.lower().replace(".", "")


def _default(field: ManifestField) -> str:
    if field.required:
        return "required"
    if field.default in (None, [], ""):
        return ""
    return code(json.dumps(field.default, ensure_ascii=False))


def _schema() -> dict[str, Any]:
    """The schema, as editors use it: a value that is not text may also be one whole ``${{ … }}``."""
    schema = TypeAdapter(Manifest).json_schema()
    _describe(schema)
    schema = _tidy(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://trainctl.dev/schemas/v1/manifest.json",
        **schema,
        "title": "trainctl manifest",
    }


def schema_text() -> str:
    """The committed form."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False) + "\n"


def _describe(schema: dict[str, Any]) -> None:
    """Add each field's docstring; pydantic would read all sources at every start of a command."""
    for section in _sections_below(CheckedSection):
        made = schema if section is Manifest else schema["$defs"].get(section.__name__, {})
        properties = made.get("properties", {})
        texts = _docstrings(section)
        for field in dataclass_fields(section):
            key = key_of(field)
            if key in properties and field.name in texts:
                described = {**properties[key], "description": texts[field.name]}
                properties[key] = dict(sorted(described.items()))
        if OTHERS in properties:
            made["additionalProperties"] = properties.pop(OTHERS)["additionalProperties"]


def _sections_below(section: type[Any]) -> Iterator[type[Any]]:
    for below in section.__subclasses__():
        if is_dataclass(below):  # not what a class with slots was made from
            yield below
            yield from _sections_below(below)


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
