"""YAML and TOML to nodes: core scalars, places, limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.text import parse_toml, parse_yaml
from trainctl.manifest.tree import MAX_DEPTH, ManifestNode, SourceFloat, to_plain
from trainctl.model.diagnostics import Diagnostic

Parse = Callable[[str, str, list[Diagnostic]], ManifestNode | None]
PARSERS: dict[str, Parse] = {"yaml": parse_yaml, "toml": parse_toml}
CASES = {case.id: case.values[0] for case in cases("manifest_text")}
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(12)
)


def tree(text: str, parse: Parse = parse_yaml) -> ManifestNode:
    """The tree of a valid text."""
    node = parse(text, "f", [])
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("no", "no"), ("yes", "yes"), ("on", "on"), ("true", True), ("False", False)),
        *(("~", None), ("", None), ("null", None), ("010", 10), ("0o17", 15), ("0x1F", 31)),
        *(("-7", -7), ("1_000", "1_000"), ("1:30", "1:30"), ("2026-01-02", "2026-01-02")),
        *(("1e-5", 1e-5), ("1.0e-5", 1e-5), (".5", 0.5), ("'1'", "1"), ('"no"', "no")),
        *(("!!str 5", "5"), ('!!int "5"', 5), ("!!float 5", 5.0), ("0b1", "0b1")),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: object) -> None:
    result = to_plain(tree(f"k: {text}\n"))["k"]
    assert result == value
    assert isinstance(result, bool) == isinstance(value, bool)
    assert isinstance(result, str) == isinstance(value, str)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_keeps_its_value_and_its_spelling(number: float) -> None:
    for text, parse in ((f"k: {number!r}", parse_yaml), (f"k = {number!r}", parse_toml)):
        result = to_plain(tree(text, parse))["k"]
        assert isinstance(result, SourceFloat)
        assert (float(result), result.text) == (number, repr(number))


def test_keys_are_text() -> None:
    assert list(tree("{010: a, no: b, 1e-5: c, true: d}").entries) == ["010", "no", "1e-5", "true"]


def test_nodes_know_their_places() -> None:
    """Lines and columns of YAML count from 1, in characters; TOML has paths."""
    node = tree("ä: {b: [1, 2]}\nc:\n  d: x\n")
    assert str(node.key_position("c")) == "f:2:1"
    assert str(node.entries["ä"].entries["b"].items[1].where) == "f:1:12"
    assert str(node.entries["c"].entries["d"].where) == "f:3:6"
    node = tree('[jobs.sft]\nweights = ["a", { source = "b" }]\n[[many]]\nx = 1\n', parse_toml)
    source = node.entries["jobs"].entries["sft"].entries["weights"].items[1].entries["source"]
    assert str(source.where) == "f: jobs.sft.weights.1.source"
    assert str(node.entries["many"].items[0].entries["x"].where) == "f: many.0.x"
    assert str(node.entries["jobs"].key_position("sft")) == "f: jobs.sft"


def test_a_repeated_key_names_both_places() -> None:
    """In YAML the first one stays, and the rest is read."""
    diagnostics: list[Diagnostic] = []
    node = parse_yaml("a: 1\nb: 2\na: 3\n", "f", diagnostics)
    assert node is not None
    assert to_plain(node) == {"a": 1, "b": 2}
    assert str(diagnostics[0].where) == "f:3:1"
    assert "f:1:1" in diagnostics[0].detail


def test_aliases_share_nodes_and_merges_add_what_is_missing() -> None:
    node = tree("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 0}\nd: *a\n")
    assert to_plain(node.entries["c"]) == {"x": 0, "y": 2, "z": 4}
    assert node.entries["d"] is node.entries["a"]


@pytest.mark.parametrize("parser", PARSERS)
def test_what_is_not_a_manifest_is_refused_with_its_place(parser: str) -> None:
    for text, place, summary, *advice in CASES[parser]:
        with pytest.raises(UnreadableManifest) as failure:
            PARSERS[parser](text, "f", [])
        assert summary in failure.value.diagnostic.summary
        assert str(failure.value.diagnostic.where) == place
        assert "".join(advice) in failure.value.diagnostic.detail


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_yaml, BOMB),
        (parse_yaml, "a: &x " + "y" * 500_000 + "\nb: [" + "*x," * 1000 + "]"),
        (
            parse_yaml,
            "a: &a {"
            + ", ".join(f"k{n}: {n}" for n in range(1000))
            + "}\n"
            + "".join(f"m{n}: {{<<: *a}}\n" for n in range(500)),
        ),
        (parse_yaml, "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)),
        (parse_yaml, "a: " + "[" * 200_000),
        (parse_yaml, "a: " + "{a: " * 200_000),
        (parse_toml, "a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)),
        (parse_toml, "a = " + "[" * 300_000),
        (parse_toml, "a = " + "{a=" * 200_000),
        (parse_toml, ".".join(["a"] * 300_000) + " = 1"),
        (parse_toml, "[" + ".".join(["a"] * 40) + "]\n" + ".".join(["b"] * 40) + " = 1"),
    ],
    ids=str.split("bomb text merges depth lists maps depth lists tables keys header"),
)
def test_size_and_depth_are_bounded(parse: Parse, text: str) -> None:
    """Before anything recurses or is copied."""
    with pytest.raises(
        UnreadableManifest, match=r"too large|too many levels of nesting"
    ) as failure:
        parse(text, "f", [])
    assert failure.value.diagnostic.where is not None


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
def test_an_invalid_value_hides_no_other_problem(text: str, summary: str) -> None:
    """Quotes are advised unless it has them."""
    problems: list[Diagnostic] = []
    root = parse_yaml(f"a: [{text}]\nb: {text}\nc: 1", "f", problems)

    assert root is not None
    assert root.entries["c"].value == 1
    places = [problem.where for problem in problems if problem.where]
    assert [(place.line, place.column) for place in places] == [(1, 5), (2, 4)]
    for problem in problems:
        assert summary in problem.summary
        assert ("quotes" in problem.detail) is ('"' not in text)


@pytest.mark.parametrize("parser", PARSERS)
def test_comments_alone_declare_nothing(parser: str) -> None:
    for text in ("# nothing\n", ""):
        assert PARSERS[parser](text, "f", []) is None
