"""``docs/reference/json.md``, from the JSON Schemas of the output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, prose, table, text_of
from trainctl.manifest.fields import ANY, TYPES, ManifestField, fields
from trainctl_schemas import names, schema

_INTRODUCTION = """\
# JSON output

`--format json` prints these documents. `trainctl schema NAME` prints the JSON Schema of one.
Minor versions add fields; ignore fields that you don't know. Fields marked `?` may be absent.
Items of lists have no step of their own in a path: `jobs.ranks.node` is the node of each rank.
"""
_INPUTS = ("manifest", "trust")
_NAMES = {
    "a list, each ": "list of ",
    **{words: name for name, words in TYPES.items()},
    "a list": "list",
    "a mapping": "mapping",
}


def page() -> str:
    """Return the text of the page."""
    lines = [_INTRODUCTION]
    for name in names():
        if name not in _INPUTS:
            lines += _section(name)
    return text_of(lines)


def _section(name: str) -> Iterator[str]:
    document = schema(name)
    found = fields(simplified(document))
    yield from (f"## {name}", "", _sentence(document["title"]), "")
    if document.get("description"):
        yield from (_sentence(document["description"]), "")
    rows = ((_path(one), type_name(one.type), prose(one.meaning)) for one in found.values())
    yield from table(("field", "type", "description"), rows)


def _path(field: ManifestField) -> str:
    steps = ["NAME" if step == ANY else step for step in field.steps]
    return code(".".join(steps) + ("" if field.required else "?"))


def _sentence(text: str) -> str:
    return prose(text).rstrip(".") + "."


def type_name(words: str) -> str:
    """The name of a type that ``trainctl explain`` describes in words."""
    for old, new in _NAMES.items():
        words = words.replace(old, new)
    return words


def simplified(schema: Any) -> Any:
    """The schema with a form for each of several types, and null as a value like others."""
    if isinstance(schema, list):
        return [simplified(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: simplified(value) for key, value in schema.items()}
    types = found.get("type")
    if types == "null":
        return {"const": "null"}
    if not isinstance(types, list):
        return found
    common = {key: found.pop(key) for key in ("description", "default") if key in found}
    forms = [{"const": "null"} if one == "null" else {**found, "type": one} for one in types]
    return {**common, "anyOf": forms}
