"""``docs/reference/manifest.md``, from the manifest's JSON Schema and the settings of providers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.generate.markdown import code, fence, prose, table, text_of
from docs.generate.schema_types import simplified, type_name
from trainctl.cli.commands.manifests.manifest import manifest_schema
from trainctl.manifest.fields import ANY, ManifestField, Steps, fields
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
