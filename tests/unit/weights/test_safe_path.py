"""File names from upstream must be valid paths below a directory."""

from __future__ import annotations

import pytest

from trainctl.base.filesystem.safe_path import check_paths
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        *[
            ([path, "good"], "the file name")
            for path in ("/a", "a/../b", "..", "./a", "a//b", "a/", "", "a\\b", "a\nb", "x" * 256)
        ],
        (["a", "a/b"], "'a' is both a file and a directory"),
        (["a", "a-b", "a.b", "a/b"], "'a' is both a file and a directory"),
        (["a", "a ", "a !", "a!", "a/b/c"], "'a' is both a file and a directory"),
        (["a/b", "a/b/c/d", "z"], "'a/b' is both a file and a directory"),
        (["a/b", "a/c", "a/b"], "'a/b' is listed twice"),
    ],
)
def test_unsafe_names_are_refused(paths: list[str], reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        check_paths("s3://box/llm", sorted(SourceFile(path, 1, "etag:e") for path in paths))
    assert caught.value.code == "unsafe-file-name"
    assert caught.value.summary.isprintable()


def test_common_prefixes_are_allowed() -> None:
    names = ["a", "a-b", "a.b", "ab/c", "b/a", "b/a.b", "x" * 255]
    check_paths("s3://box/llm", sorted(SourceFile(name, 1, "etag:e") for name in names))
