"""YAML to nodes: core scalars, places, limits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.text.yaml_text import parse_yaml
from trainctl.manifest.tree import MAX_DEPTH, ManifestNode, SourceFloat, to_plain
from trainctl.model.diagnostics import Diagnostic


def value(text: str) -> object:
    """The value of a one-key document."""
    node = parse_yaml(f"k: {text}\n", "f", [])
    assert node is not None
    return to_plain(node.entries["k"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        (".5", 0.5),
        ("'1'", "1"),
        ('"no"', "no"),
        ("!!str 5", "5"),
        ('!!int "5"', 5),
        ("!!float 5", 5.0),
        ("0b1", "0b1"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, expected: object) -> None:
    """An unquoted word means what YAML 1.2 says, not what YAML 1.1 said."""
    found = value(text)
    assert found == expected
    assert isinstance(found, bool) == isinstance(expected, bool)
    assert isinstance(found, str) == isinstance(expected, str)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_keeps_its_value_and_its_spelling(number: float) -> None:
    """What Python writes for a float is read back as that float, spelled so."""
    found = value(repr(number))
    assert isinstance(found, SourceFloat)
    assert float(found) == number
    assert found.text == repr(number)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_every_quoted_text_is_text(text: str) -> None:
    """Whatever is escaped in quotes comes back as it was."""
    escaped = "".join(f"\\U{ord(char):08x}" for char in text)
    node = parse_yaml(f'k: "{escaped}"', "f", [])
    assert node is not None
    assert to_plain(node) == {"k": text}


def test_keys_are_text() -> None:
    """A key is the text that was written, whatever it would mean as a value."""
    node = parse_yaml("{010: a, no: b, 1e-5: c, true: d}", "f", [])
    assert node is not None
    assert list(node.entries) == ["010", "no", "1e-5", "true"]


def test_keys_and_values_know_where_they_stand() -> None:
    """Lines and columns count from 1, in characters."""
    node = parse_yaml("ä: {b: [1, 2]}\nc:\n  d: x\n", "f.yaml", [])
    assert node is not None
    assert str(node.key_position("c")) == "f.yaml:2:1"
    assert str(node.entries["ä"].entries["b"].items[1].where) == "f.yaml:1:12"
    assert str(node.entries["c"].entries["d"].where) == "f.yaml:3:6"


def test_a_repeated_key_names_both_places() -> None:
    """The problem stands at the second and names the first, which stays."""
    found: list[Diagnostic] = []
    node = parse_yaml("a: 1\nb: 2\na: 3\n", "f.yaml", found)
    assert node is not None
    assert to_plain(node) == {"a": 1, "b": 2}
    assert str(found[0].where) == "f.yaml:3:1"
    assert "f.yaml:1:1" in found[0].detail


def test_aliases_and_merge_keys() -> None:
    """An alias is the same value; ``<<`` adds what is not said, first mapping first."""
    node = parse_yaml(
        "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 0}\nd: *a\n", "f", []
    )
    assert node is not None
    assert to_plain(node.entries["c"]) == {"x": 0, "y": 2, "z": 4}
    assert to_plain(node.entries["d"]) == {"x": 1, "y": 2}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(12)
)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (BOMB, "too large after expanding aliases"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "too many levels of nesting"),
        ("a: " + "[" * 200_000, "too many levels of nesting"),
        ("a: " + "{a: " * 200_000, "too many levels of nesting"),
        (
            "a: &x " + "y" * 500_000 + "\nb: [" + "*x," * 1000 + "]",
            "too large after expanding aliases",
        ),
        ("a: &a [*a]", "undefined alias"),
        ("a: !!python/object/apply:os.system [id]", "only the core tags"),
        ("a: 1\n---\nb: 2", "more than one YAML document"),
        ("a:\n\tb: 1", "indentation with a tab"),
        ("? [a]\n: b", "a key must be text"),
        ("<<: [1]\na: 2", "'<<' can only merge mappings"),
        ("a: [1", "invalid YAML"),
        ("a: 'x", "invalid YAML"),
        ("a: \x01", "invalid YAML"),
        ("a: b: c", "invalid YAML"),
    ],
)
def test_what_is_not_a_manifest_is_refused_where_it_stands(text: str, summary: str) -> None:
    """Bombs, tags and syntax errors stop the file, with a place."""
    with pytest.raises(UnreadableManifest, match=re.escape(summary)) as stop:
        parse_yaml(text, "f.yaml", [])
    assert stop.value.diagnostic.where is not None
    assert stop.value.diagnostic.where.line is not None


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("!env HOME", "the tag !env doesn't match"),
        ("!!binary aGk=", "doesn't match"),
        ("!!int x", "doesn't match"),
        (".inf", "infinity"),
        (".NaN", "infinity"),
        ("1e999", "infinity"),
        ("9" * 5000, "digits"),
        ('"x\\0y"', "NUL"),
    ],
)
def test_a_value_that_is_none_is_a_problem_beside_others(text: str, summary: str) -> None:
    """At its place; the rest of the file is read. Quotes are advised where there are none."""
    problems: list[Diagnostic] = []
    root = parse_yaml(f"a: [{text}]\nb: {text}\nc: 1", "f.yaml", problems)

    assert root is not None
    assert root.entries["c"].value == 1
    assert [(one.where.line, one.where.column) for one in problems if one.where] == [(1, 5), (2, 4)]
    assert [summary in one.summary for one in problems] == [True, True]
    assert ["quotes" in one.detail for one in problems] == ['"' not in text] * 2


def test_merged_mappings_are_counted() -> None:
    """Merging over and over is bounded as aliases are."""
    base = "a: &a {" + ", ".join(f"k{n}: {n}" for n in range(1000)) + "}\n"
    text = base + "".join(f"m{n}: {{<<: *a}}\n" for n in range(500))
    with pytest.raises(UnreadableManifest, match="too large"):
        parse_yaml(text, "f", [])


def test_an_empty_text_has_no_document() -> None:
    """Comments alone declare nothing."""
    assert parse_yaml("# nothing\n", "f", []) is None
    assert parse_yaml("", "f", []) is None


def test_nodes_are_shared_by_aliases() -> None:
    """Following an alias costs no memory."""
    node = parse_yaml("a: &a {x: 1}\nb: *a\n", "f", [])
    assert node is not None
    assert isinstance(node.entries["a"], ManifestNode)
    assert node.entries["a"] is node.entries["b"]
