"""TOML to nodes: values as YAML has them, and places its parser does not tell."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.manifest.files import Unreadable
from trainctl.manifest.toml_places import places_of
from trainctl.manifest.toml_text import parse_toml
from trainctl.manifest.tree import MAX_DEPTH, Node, SourceFloat, plain

TEXT = '''\
version = 1  # [not.a.table]
vars.lr = 1.0e-5
"quoted \\u00e4" = """
[also.not]
"""

[jobs.sft]
code = './src'
weights = [
  "hf://a/b", # comment ]
  { source = "s3://x/y", allow_patterns = ["*.json"] },
]
[jobs.sft.runtime]
start_commands = ["a", 'b']
[[many]]
x = 1
[[many]]
x = 2
[many.deep]
y = 3
'''


def root(text: str) -> Node:
    """The tree of a text that is TOML."""
    node = parse_toml(text, "f.toml", [])
    assert node is not None
    return node


def place(node: Node, *steps: str | int) -> str:
    """Where a value stands, ``LINE:COLUMN``."""
    for step in steps:
        node = node.entries[step] if isinstance(step, str) else node.items[step]
    return f"{node.where.line}:{node.where.column}"


def test_values_know_where_they_stand() -> None:
    """Places through dotted keys, arrays over lines, inline tables and tables of tables; strings mislead nobody."""
    node = root(TEXT)
    assert place(node, "vars", "lr") == "2:11"
    assert place(node, "jobs", "sft", "weights", 0) == "10:3"
    assert place(node, "jobs", "sft", "weights", 1, "source") == "11:14"
    assert place(node, "jobs", "sft", "weights", 1, "allow_patterns", 0) == "11:44"
    assert place(node, "jobs", "sft", "runtime", "start_commands", 1) == "14:24"
    assert place(node, "many", 1, "x") == "18:5"
    assert place(node, "many", 1, "deep", "y") == "20:5"
    assert str(node.entries["jobs"].key_place("sft")) == "f.toml:7:7"
    assert "quoted ä" in node.entries


def test_floats_keep_their_spelling() -> None:
    """As in YAML."""
    found = plain(root("a = 1.0e-5"))["a"]
    assert isinstance(found, SourceFloat)
    assert found.text == "1.0e-5"


@pytest.mark.parametrize(
    ("text", "summary", "line"),
    [
        ("a = 1\nb = 2026-01-02", "a manifest has no dates", 2),
        ("a = inf", "infinity", 1),
        ("a = nan", "infinity", 1),
        ("a = 1e999", "infinity", 1),
        ('a = "x\\u0000y"', "NUL", 1),
        ("a = 1\nb = = 2", "not TOML", 2),
        ("a = [1", "not TOML", 1),
        ("[a]\nx = 1\n[b]\n[a]\ny = 2", "'a' is given twice", 4),
        ("[a]\nx = 1\nx = 2", "'x' is given twice", 3),
    ],
)
def test_what_is_not_a_manifest_is_refused_where_it_stands(
    text: str, summary: str, line: int
) -> None:
    """Each with its line."""
    with pytest.raises(Unreadable, match=re.escape(summary)) as stop:
        parse_toml(text, "f.toml", [])
    assert stop.value.diagnostic.where is not None
    assert stop.value.diagnostic.where.line == line


def test_a_repeated_name_names_both_places() -> None:
    """TOML's parser knows the second place only; the message has the first too."""
    with pytest.raises(Unreadable) as stop:
        parse_toml("[jobs.a]\nx = 1\n[jobs.a]\n", "f.toml", [])
    assert "f.toml:1:7" in stop.value.diagnostic.detail


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
    with pytest.raises(Unreadable, match="nested too deep"):
        parse_toml(text, "f.toml", [])


def test_an_empty_text_has_no_document() -> None:
    """Comments alone declare nothing."""
    assert parse_toml("# nothing\n", "f", []) is None


@given(st.text(alphabet="[]{}=.,\"'#\n\\ ab1", max_size=60))
def test_the_scanner_survives_any_text(text: str) -> None:
    """What is not TOML is the parser's to refuse; the scanner neither fails nor hangs."""
    assert places_of(text) is not None
