"""File names from upstream must be valid paths below a directory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.base.filesystem.safe_path import check_paths
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError


@pytest.mark.parametrize("case", cases("sources/unsafe_names"))
def test_unsafe_names_are_refused(case: dict[str, Any]) -> None:
    files = sorted(SourceFile(path, 1, "etag:e") for path in case["paths"])
    with pytest.raises(SourceError, match=case["reason"]) as caught:
        check_paths("s3://box/llm", files)
    assert caught.value.code == "unsafe-file-name"
    assert caught.value.summary.isprintable()


def test_common_prefixes_are_allowed() -> None:
    names = ["a", "a-b", "a.b", "ab/c", "b/a", "b/a.b", "x" * 255]
    check_paths("s3://box/llm", sorted(SourceFile(name, 1, "etag:e") for name in names))
