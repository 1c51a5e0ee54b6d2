from __future__ import annotations

import pytest

from trainctl.base.listing import SourceFile
from trainctl.weights.patterns import compile_pattern, select

FILES = [
    SourceFile(path, 1, "etag:1")
    for path in ("a.json", "model.safetensors", "onnx/model.onnx", "onnx/deep/b.json", "x[1].txt")
]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.json", "a/b.json", True),
        ("onnx/", "onnx/deep/b.json", True),
        ("/*.json", "a.json", True),
        ("/*.json", "a/b.json", False),
        ("/onnx/", "onnx/deep/b.json", True),
        ("/onnx/*", "onnx/deep/b.json", False),
        ("/onnx/**", "onnx/deep/b.json", True),
        ("/**/b.json", "b.json", True),
        ("/**/b.json", "onnx/deep/b.json", True),
        ("/a?c", "a/c", False),
        ("/a[!x]c", "a/c", False),
        ("/a[!x]c", "abc", True),
        ("/a.b", "axb", False),
        ("/[", "[", True),
        ("A.json", "a.json", False),
    ],
)
def test_what_a_pattern_matches(pattern: str, path: str, *, matches: bool) -> None:
    """Anchored and unanchored patterns, where stars cross directories and where not."""
    assert bool(compile_pattern(pattern)(path)) == matches


def test_ignore_wins() -> None:
    """A file that both lists name is left out."""
    chosen, unmatched = select(FILES, ["*.json"], ["onnx/*"])
    assert [file.path for file in chosen] == ["a.json"]
    assert unmatched == ()


def test_no_list_is_everything_and_an_empty_one_nothing() -> None:
    """None wants all files, an empty list none."""
    assert len(select(FILES, None, None)[0]) == len(FILES)
    assert select(FILES, [], None)[0] == ()
    assert len(select(FILES, None, [])[0]) == len(FILES)


def test_patterns_without_a_file_are_reported_once() -> None:
    """A pattern that matches nothing comes back, whichever list it is in."""
    _, unmatched = select(FILES, ["*.gguf", "*.json", "*.gguf"], ["*.md"])
    assert unmatched == ("*.gguf", "*.md")
