from __future__ import annotations

import re

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
    """Without a leading slash, the chosen files are those that huggingface_hub would choose."""
    files = [SourceFile(path, 1, "etag:1") for path in paths]
    theirs = filter_repo_objects(paths, allow_patterns=allow, ignore_patterns=ignore)
    ours, _ = select(files, allow, ignore)
    assert [file.path for file in ours] == sorted(theirs)


@given(PATH)
def test_an_anchored_path_matches_itself_only_at_the_top(path: str) -> None:
    """A leading slash anchors: the path matches, and the same path below a directory does not."""
    assert compile_pattern(f"/{path}")(path)
    assert not compile_pattern(f"/{path}")(f"zz/{path}")


@given(PATH)
def test_an_anchored_star_stays_in_its_directory(path: str) -> None:
    """``/*`` matches exactly the files at the top, ``/**/*`` all of them."""
    assert bool(compile_pattern("/*")(path)) == ("/" not in path)
    assert compile_pattern("/**/*")(path)


WILD = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]", "[a-c]": "(?!/)[a-c]", "[!b]": "(?!/)[^b]"}  # fmt: skip
TOKENS = st.lists(st.sampled_from([*WILD, "a", "b", "/", ".", "ab/"]), min_size=1, max_size=8)


@given(TOKENS, PATH)
def test_an_anchored_pattern_is_what_a_regular_expression_makes_of_it(
    tokens: list[str], path: str
) -> None:
    """Of whatever it is put together; stars that meet are read from the left."""
    text = "".join(tokens)
    text += "**" if text.endswith("/") else ""  # as a slash at the end is read
    found = re.findall(r"\*\*/|\*\*|\[[^\]]*\]|.", text)
    expected = re.compile("".join(WILD.get(one) or re.escape(one) for one in found))
    assert bool(compile_pattern(f"/{text}")(path)) == bool(expected.fullmatch(path))


@given(st.lists(PATH, unique=True), st.lists(PATTERN), st.lists(PATTERN))
def test_unmatched_patterns_are_those_without_a_file(
    paths: list[str], allow: list[str], ignore: list[str]
) -> None:
    """A pattern is reported exactly when no file matches it, whether it allows or ignores."""
    files = [SourceFile(path, 1, "etag:1") for path in paths]
    _, unmatched = select(files, allow, ignore)
    expected = {
        one for one in [*allow, *ignore] if not any(compile_pattern(one)(path) for path in paths)
    }
    assert set(unmatched) == expected
