from __future__ import annotations

import subprocess
import sys

import pytest

from trainctl.base.listing import SourceFile
from trainctl.weights.patterns import matcher, select

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
    assert bool(matcher(pattern)(path)) == matches


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


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/" + "**/" * 12 + "z.bin", "d/" * 60 + "a.bin"),
        ("/" + "*a" * 12 + "b", "a" * 200),
        ("/" + "**a" * 12 + "b", "a/" * 100),
    ],
)
def test_a_pattern_with_many_stars_is_answered_at_once(pattern: str, path: str) -> None:
    """There are more ways to match it than could be tried one after another. In a process of its own, as nothing could stop one that tries."""
    code = "import sys; from trainctl.weights.patterns import matcher; print(bool(matcher(sys.argv[1])(sys.argv[2])))"
    done = subprocess.run(
        [sys.executable, "-c", code, pattern, path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "False"
