"""Names that upstream gives its files, held to what may become a path below a directory."""

from __future__ import annotations

import pytest

from trainctl.base.filesystem.safe_path import check_paths
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError


def check(*paths: str) -> None:
    check_paths("s3://box/llm", sorted(SourceFile(path, 1, "etag:e") for path in paths))


@pytest.mark.parametrize(
    "paths",
    [
        ("a", "a/b"),
        ("a", "a-b", "a.b", "a/b"),
        ("a/b", "a/b/c/d", "z"),
        ("a", "a ", "a !", "a!", "a/b/c"),
    ],
)
def test_what_is_both_a_file_and_a_directory_is_refused(paths: tuple[str, ...]) -> None:
    """Whatever sorts between the two: a bucket may have both, and no disk can."""
    with pytest.raises(SourceError, match=r"'(a|a/b)' is both a file and a directory") as caught:
        check(*paths)
    assert caught.value.code == "unsafe-file-name"


def test_a_name_that_is_listed_twice_is_refused() -> None:
    """One of the two would be lost."""
    with pytest.raises(SourceError, match="'a/b' is listed twice"):
        check("a/b", "a/c", "a/b")


@pytest.mark.parametrize(
    "path", ["/a", "a/../b", "..", "./a", "a//b", "a/", "", "a\\b", "a\nb", "x" * 256]
)
def test_what_could_be_no_path_below_a_directory_is_refused(path: str) -> None:
    """Each with its reason, and beside names that are all right."""
    with pytest.raises(SourceError, match="the file name") as caught:
        check("good", path)
    assert caught.value.code == "unsafe-file-name"


def test_names_that_only_begin_alike_are_names() -> None:
    """No more than that is refused."""
    check("a", "a-b", "a.b", "ab/c", "b/a", "b/a.b", "x" * 255)
