"""Listings: their stored form, and how much memory they take."""

from __future__ import annotations

import json

import pytest

from trainctl.base.json import hex_digest
from trainctl.base.listing import ListedFile, Listing

"""Of memory, for each file."""


def listing(count: int) -> Listing:
    return Listing(
        tuple(
            ListedFile(f"data/{n // 1000:04}/sample-{n:08}.jpg", 20_000 + n, hex_digest(n))
            for n in range(count)
        )
    )


def test_a_stored_listing_is_what_was_stored() -> None:
    files = (
        ListedFile('a "],[{ b', 1, "0" * 64),
        ListedFile("big\u2028", 2**40, "1" * 64, [f"{n:064x}" for n in range(5000)]),
    )
    stored = Listing(files)
    found = Listing.from_bytes(stored.to_bytes())

    assert found == stored
    assert found.id == stored.id
    assert found.files[1].chunks == tuple(f"{n:064x}" for n in range(5000))
    assert [file.row for file in found.files] == list(stored.rows())


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"version": 1}', '{"chunk_bytes": 16777216, "files": [1], "version": 1}']
)
def test_what_is_not_a_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a listing|newer|malformed file"):
        Listing.from_bytes(text.encode())


@pytest.mark.parametrize("value", ["x" * 64, "0" * 63, 5, None])
def test_a_file_without_a_digest_is_refused(value: object) -> None:
    document = json.loads(listing(2).to_bytes())
    document["files"][1]["sha256"] = value
    with pytest.raises(ValueError, match="malformed file"):
        Listing.from_bytes(json.dumps(document).encode())
