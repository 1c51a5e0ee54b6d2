"""Listings as they are stored."""

from __future__ import annotations

import json

import pytest

from trainctl.base.json import hex_digest
from trainctl.base.listing import ListedFile, Listing


@pytest.mark.parametrize("count", [0, 3, 20_000])
def test_a_stored_listing_is_what_was_stored(count: int) -> None:
    """Each file, and its id."""
    files = tuple(
        ListedFile(f"d/{n:06} é\"'.bin", n, hex_digest(n), (hex_digest(-n),) * (n % 3))
        for n in range(count)
    )
    listing = Listing(files)
    found = Listing.from_bytes(listing.to_bytes())
    assert found == listing
    assert found.id == listing.id == hex_digest(json.loads(listing.to_bytes()))


def test_a_listing_of_another_version_is_refused() -> None:
    """One that a newer version wrote."""
    whole = Listing((ListedFile("w", 1, "0" * 64),)).to_bytes()
    newer = json.dumps({**json.loads(whole), "version": 2}).encode()
    with pytest.raises(ValueError, match="version 2 is newer"):
        Listing.from_bytes(newer)
