"""``docs/reference/json.md``, from the JSON Schemas of the output."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate.markdown import code, prose, table, text_of
from docs.generate.schema_types import simplified, type_name
from trainctl.manifest.fields import ANY, ManifestField, fields
from trainctl_schemas import names, schema

_INTRODUCTION = """\
# JSON output

`--format json` prints these documents. `trainctl schema NAME` prints the JSON Schema of one.
Minor versions add fields; ignore fields that you don't know. Fields marked `?` may be absent.
Items of lists have no step of their own in a path: `jobs.ranks.node` is the node of each rank.
"""
_INPUTS = ("manifest", "trust")


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
