"""What a file is held against, of all that upstream tells of its content."""

from __future__ import annotations

import zlib

import pytest

from trainctl.base.listing import SourceFile
from trainctl.weights.mirror.sums import CRC_FROM_BYTES, announced, is_worth_asking, sums_of

TEXT = b"123456789"
"""Of which every catalogue of CRCs tells the value."""
VECTORS = {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
SMALL, LARGE = CRC_FROM_BYTES - 1, CRC_FROM_BYTES


def file(checksum: str, size: int = SMALL, validator: str = 'etag:"t"') -> SourceFile:
    return SourceFile("model.bin", size, validator, checksum)


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
@pytest.mark.parametrize(("kind", "value"), VECTORS.items())
def test_crcs_are_those_that_everybody_knows(kind: str, value: str, cut: int) -> None:
    """However the bytes come."""
    found = sums_of(file(f"{kind}:{value}"))
    assert found is not None
    for piece in (TEXT[:cut], memoryview(bytearray(TEXT))[cut:]):
        found.update(piece)
    assert found.told() == {kind: value}


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
@pytest.mark.parametrize("part", [1, 2, 3, 4, 8, 9, 10])
def test_a_checksum_of_checksums_is_made_of_parts(part: int, cut: int) -> None:
    """However the bytes come."""
    crcs = (zlib.crc32(TEXT[at : at + part]).to_bytes(4, "big") for at in range(0, 9, part))
    expected = f"{zlib.crc32(b''.join(crcs)):08x}/{part}"
    found = sums_of(file(f"crc32:{expected}"))
    assert found is not None
    for piece in (TEXT[:cut], memoryview(bytearray(TEXT))[cut:]):
        found.update(piece)
    for _ in range(2):
        assert found.told() == {"crc32": expected}


MD5, CRC = "md5:" + "a" * 32, "crc32c:e3069283"


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (file(f"{MD5} {CRC}"), "md5"),
        (file(f"{MD5} {CRC}", LARGE), "crc32c"),
        (file(CRC), "crc32c"),
        (file(f"{MD5} crc64nvme:", LARGE), "md5"),
        (file(f"{MD5} {CRC}", LARGE, "sha256:" + "b" * 64), "sha256"),
        (file("crc64nvme:", LARGE), ""),
        (file("crc:"), ""),
        (file("crc128:ab sha512:cd"), ""),
        (file(""), ""),
    ],
)
def test_one_of_what_is_told_is_compared(one: SourceFile, kind: str) -> None:
    """A digest of the content first, then what costs least; what has no value isn't told yet, and unknown words are none."""
    assert announced(one)[0] == kind


@pytest.mark.parametrize(
    ("one", "asked"),
    [
        (file("crc64nvme:"), True),
        (file("crc:"), True),
        (file(f"{MD5} crc64nvme:"), False),
        (file(f"{MD5} crc64nvme:", LARGE), True),
        (file(MD5, LARGE), False),
        (file(CRC, LARGE), False),
        (file(f"{MD5} crc32:", LARGE, "sha256:" + "b" * 64), False),
        (file("", LARGE), False),
    ],
)
def test_a_request_is_worth_what_it_tells(one: SourceFile, asked: bool) -> None:
    """Where nothing else is told, and of large files that have an MD5 only where there is a CRC."""
    assert is_worth_asking(one) is asked


def test_beside_a_tag_that_may_be_no_digest_the_crc_is_made() -> None:
    """For when the server says so."""
    found = sums_of(file(f"{MD5} crc64nvme:"))
    assert found is not None
    found.update(TEXT)
    assert found.told()["crc64nvme"] == VECTORS["crc64nvme"]


@pytest.mark.usefixtures("only_standard_library")
def test_without_the_library_what_it_makes_is_as_if_it_weren_t_told() -> None:
    """CRC32 is in the standard library."""
    assert announced(file(f"{MD5} {CRC}", LARGE))[0] == "md5"
    assert announced(file(CRC))[0] == ""
    assert not is_worth_asking(file("crc64nvme:", LARGE))
    assert announced(file("crc32:cbf43926"))[0] == "crc32"
    assert is_worth_asking(file("crc32:"))
