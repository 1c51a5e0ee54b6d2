"""The public JSON Schema of the manifest is made from the types, and real manifests hold against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from trainctl.manifest.read import read
from trainctl.manifest.tree import to_plain
from trainctl_schemas import names, schema

ROOT = Path(__file__).parents[2]


def valid(document: object) -> bool:
    """Whether a document holds against the committed schema."""
    return Draft202012Validator(schema("manifest")).is_valid(document)


def test_every_schema_is_a_schema() -> None:
    assert "manifest" in names()
    for name in names():
        Draft202012Validator.check_schema(schema(name))


def test_a_schema_that_is_not_there_names_the_others() -> None:
    """So a wrong name is easy to mend; a path is no name."""
    for name in ("manifets", "../v1/manifest"):
        with pytest.raises(KeyError, match="manifest"):
            schema(name)


@pytest.mark.parametrize(
    "example", sorted(path.parent.name for path in (ROOT / "examples").glob("*/trainctl.*"))
)
def test_examples_hold_against_the_schema(example: str) -> None:
    """Editors that use the schema accept what trainctl accepts."""
    document = json.loads(json.dumps(to_plain(read(ROOT / "examples" / example).root)))
    errors = [
        error.message for error in Draft202012Validator(schema("manifest")).iter_errors(document)
    ]
    assert errors == []


JOB = {"runtime": {"start_commands": ["x"]}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"jobs": {"a": JOB}},
        {"jobs": {"a": {**JOB, "compute": {"node_count": "${{ var.n }}"}}}},
        {"jobs": {"a": {**JOB, "weights": ["hf://a/b", {"source": "file:./x"}, "name"]}}},
        {"clusters": {"a": {"provider": "ssh", "hosts": ["x"], "price_per_hour": 1}}},
        {"mirror": {"url": "${{ var.scheme }}://x"}},
    ],
)
def test_the_schema_takes_what_is_right(document: object) -> None:
    """Expressions may stand where numbers do."""
    assert valid(document)


@pytest.mark.parametrize(
    "document",
    [
        {"job": {}},
        {"jobs": {"a": {}}},
        {"jobs": {"": JOB}},
        {"jobs": {"a": {**JOB, "compute": {"node_count": 0}}}},
        {"jobs": {"a": {**JOB, "compute": {"node_count": "2"}}}},
        {"jobs": {"a": {**JOB, "compute": {"memory": "64GB"}}}},
        {"jobs": {"a": {"runtime": {"start_commands": "x"}}}},
        {"jobs": {"a": {"runtime": {"start_commands": ["x"], "environment_variables": {"A": 5}}}}},
        {"weights": {"a": {"source": "http://x/y"}}},
        {"secrets": {"a": {"from": "vault"}}},
        {"version": 2},
    ],
)
def test_the_schema_refuses_what_is_wrong(document: object) -> None:
    assert not valid(document)


def test_every_field_is_described() -> None:
    bare = [
        f"{name}.{key}"
        for name, section in schema("manifest")["$defs"].items()
        for key, entry in section.get("properties", {}).items()
        if not entry.get("description")
    ]
    assert bare == []
