"""Digests that upstream announces, or reports when it is asked about one file."""

from __future__ import annotations

import hashlib
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceMismatch
from trainctl.store.file_hash import FileHash

DATA = b"weights"
RIGHT, WRONG = (f"md5:{hashlib.md5(data).hexdigest()}" for data in (DATA, b"other"))

SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
CRC32 = f"crc32:{zlib.crc32(DATA):08x}"


def hashed(announced: str, reported: str) -> str:
    """The digest of DATA, whose upstream announces one checksum and reports the other if it is asked."""
    upstream: Any = SimpleNamespace(source="s3://b/p", checksum=lambda file: reported)
    result = FileHash(SourceFile("x", len(DATA), 'etag:"t"', announced))
    result.update(DATA)
    return result.verify(upstream)


@pytest.mark.parametrize(
    ("announced", "reported"),
    [
        ("", WRONG),
        (RIGHT, WRONG),
        ("md5:", RIGHT),
        ("md5:", ""),
        ("md5:", "md5:"),
        (WRONG, ""),
        (WRONG, RIGHT),
        (WRONG, SHA256),
        (CRC32, WRONG),
        (SHA256, WRONG),
    ],
)
def test_content_is_taken_unless_its_md5_is_another(announced: str, reported: str) -> None:
    """What looks like an MD5 and is none, as upstream says when it is asked, stops nothing."""
    assert hashed(announced, reported) == hashlib.sha256(DATA).hexdigest()


@pytest.mark.parametrize("announced", ["md5:", WRONG])
def test_another_md5_is_refused(announced: str) -> None:
    """Whether it was announced or reported later."""
    with pytest.raises(SourceMismatch, match="MD5"):
        hashed(announced, WRONG)


@pytest.mark.parametrize(
    ("announced", "reported", "name"),
    [
        (WRONG, CRC32, "MD5"),  # the CRC-32 was not computed, so the MD5 decides
        (WRONG, f"sha256:{'0' * 64}", "MD5"),
        ("crc32:00000000", "", "CRC-32"),
        (f"sha256:{'0' * 64}", "", "sha256"),
    ],
)
def test_other_checksums_are_compared(announced: str, reported: str, name: str) -> None:
    with pytest.raises(SourceMismatch, match=f"Expected {name} {announced.partition(':')[2]}"):
        hashed(announced, reported)
