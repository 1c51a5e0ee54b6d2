from __future__ import annotations

import subprocess
import sys

from trainctl.base.listing import SourceFile
from trainctl.weights.patterns import select

FILES = [
    SourceFile(path, 1, "etag:1")
    for path in ("a.json", "model.safetensors", "onnx/model.onnx", "onnx/deep/b.json", "x[1].txt")
]


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


def test_patterns_with_many_stars_are_answered_at_once() -> None:
    """They could match in too many ways to try each. In a process of its own, which can be stopped if it does try."""
    code = """
from trainctl.weights.patterns import compile_pattern
print(bool(compile_pattern("/" + "**/" * 12 + "z.bin")("d/" * 60 + "a.bin")))
print(bool(compile_pattern("/" + "*a" * 12 + "b")("a" * 200)))
print(bool(compile_pattern("/" + "**a" * 12 + "b")("a/" * 100)))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False"] * 3
