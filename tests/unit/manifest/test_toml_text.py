"""TOML to nodes: values as YAML has them, and where they stand."""

from __future__ import annotations

import re

import pytest

from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.text.toml_text import parse_toml
from trainctl.manifest.tree import MAX_DEPTH, ManifestNode, SourceFloat, to_plain


def root(text: str) -> ManifestNode:
    """The tree of a text that is TOML."""
    node = parse_toml(text, "f.toml", [])
    assert node is not None
    return node


def test_values_know_where_they_stand() -> None:
    """By their path of keys: the parser tells no lines."""
    node = root('[jobs.sft]\nweights = ["hf://a/b", { source = "s3://x/y" }]\n[[many]]\nx = 1\n')
    job = node.entries["jobs"].entries["sft"]
    assert str(job.entries["weights"].items[1].entries["source"].where) == (
        "f.toml: jobs.sft.weights.1.source"
    )
    assert str(node.entries["many"].items[0].entries["x"].where) == "f.toml: many.0.x"
    assert str(node.entries["jobs"].key_position("sft")) == "f.toml: jobs.sft"


def test_floats_keep_their_spelling() -> None:
    """As in YAML."""
    found = to_plain(root("a = 1.0e-5"))["a"]
    assert isinstance(found, SourceFloat)
    assert found.text == "1.0e-5"


@pytest.mark.parametrize(
    ("text", "summary", "where"),
    [
        ("a = 1\nb = 2026-01-02", "dates are not supported in a manifest", "f.toml: b"),
        ("a = inf", "infinity", "f.toml: a"),
        ("a = nan", "infinity", "f.toml: a"),
        ("a = 1e999", "infinity", "f.toml: a"),
        ('a = "x\\u0000y"', "NUL", "f.toml: a"),
        ("a = 1\nb = = 2", "invalid TOML", "f.toml:2:5"),
        ("a = [1", "invalid TOML", "f.toml:1:7"),
        ("[a]\nx = 1\n[b]\n[a]\ny = 2", "duplicate key 'a'", "f.toml:4:3"),
        ("[a]\nx = 1\nx = 2", "duplicate key 'x'", "f.toml:3:6"),
        ("a = {x = 1, x = 2}", "invalid TOML", "f.toml:1:18"),
    ],
)
def test_what_is_not_a_manifest_is_refused_where_it_stands(
    text: str, summary: str, where: str
) -> None:
    """Each with its line or its path."""
    with pytest.raises(UnreadableManifest, match=re.escape(summary)) as stop:
        parse_toml(text, "f.toml", [])
    assert str(stop.value.diagnostic.where) == where


def test_a_repeated_name_names_both_places() -> None:
    """TOML's parser knows the second place only; the message has the first too."""
    with pytest.raises(UnreadableManifest) as stop:
        parse_toml("[jobs.a]\nx = 1\n[jobs.a]\n", "f.toml", [])
    assert "f.toml:1:1" in stop.value.diagnostic.detail


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "a = " + "[" * 300_000,
        "a = " + "{a=" * 200_000,
        ".".join(["a"] * 300_000) + " = 1",
        "[" + ".".join(["a"] * 300_000) + "]",
        "[" + ".".join(["a"] * 40) + "]\n" + ".".join(["b"] * 40) + " = 1",
    ],
    ids=["deep", "arrays", "tables", "keys", "header", "both"],
)
def test_depth_is_bounded_before_anything_recurses(text: str) -> None:
    """However it is spelled."""
    with pytest.raises(UnreadableManifest, match="too many levels of nesting"):
        parse_toml(text, "f.toml", [])


def test_an_empty_text_has_no_document() -> None:
    """Comments alone declare nothing."""
    assert parse_toml("# nothing\n", "f", []) is None
