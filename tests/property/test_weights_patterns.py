from __future__ import annotations

import re
import subprocess
import sys

from huggingface_hub.utils._paths import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from trainctl.base.listing import SourceFile
from trainctl.weights.patterns import compile_pattern, select

NAME = st.text(alphabet="ab.-[]!*?\\/é\n", min_size=1, max_size=8)
PATH = st.lists(st.text(alphabet="ab.é-", min_size=1, max_size=3), min_size=1, max_size=4).map(
    "/".join
)
PATTERN = NAME.filter(lambda text: not text.startswith(("/", "\\")))


@given(st.lists(PATH, unique=True), st.none() | st.lists(PATTERN), st.none() | st.lists(PATTERN))
def test_patterns_mean_what_they_mean_to_the_hub(
    paths: list[str], allow: list[str] | None, ignore: list[str] | None
) -> None:
    files = [SourceFile(path, 1, "etag:1") for path in paths]
    theirs = filter_repo_objects(paths, allow_patterns=allow, ignore_patterns=ignore)
    ours, _ = select(files, allow, ignore)
    assert [file.path for file in ours] == sorted(theirs)


WILD = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]", "[a-c]": "(?!/)[a-c]", "[!b]": "(?!/)[^b]"}  # fmt: skip
TOKENS = st.lists(st.sampled_from([*WILD, "a", "b", "/", ".", "ab/"]), min_size=1, max_size=8)


@given(TOKENS, PATH)
def test_an_anchored_pattern_is_what_a_regular_expression_makes_of_it(
    tokens: list[str], path: str
) -> None:
    """Of whatever it is put together; stars that meet are read from the left."""
    text = "".join(tokens)
    text += "**" if text.endswith("/") else ""  # as a slash at the end is read
    matches = re.findall(r"\*\*/|\*\*|\[[^\]]*\]|.", text)
    expected = re.compile("".join(WILD.get(match) or re.escape(match) for match in matches))
    assert bool(compile_pattern(f"/{text}")(path)) == bool(expected.fullmatch(path))


def test_ignore_wins_and_an_empty_list_allows_nothing() -> None:
    files = [SourceFile(path, 1, "etag:1") for path in ("a.json", "onnx/deep/b.json", "w.bin")]
    chosen, unmatched = select(files, ["*.json", "*.gguf", "*.gguf"], ["onnx/*"])
    assert [file.path for file in chosen] == ["a.json"]
    assert unmatched == ("*.gguf",)
    assert select(files, [], None)[0] == ()
    assert len(select(files, None, [])[0]) == len(files)


def test_patterns_with_many_stars_do_not_backtrack() -> None:
    """In a process of its own, which can be stopped if they do."""
    code = """
from trainctl.weights.patterns import compile_pattern
print(bool(compile_pattern("/" + "**/" * 12 + "z.bin")("d/" * 60 + "a.bin")))
print(bool(compile_pattern("/" + "*a" * 12 + "b")("a" * 200)))
print(bool(compile_pattern("/" + "**a" * 12 + "b")("a/" * 100)))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False"] * 3
