from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainctl.base.json import hex_digest
from trainctl.base.listing import ListedFile, Listing, load_listing
from trainctl.base.packed import AS_TUPLE, Packed


def stored(listing: Listing, directory: Path) -> Path:
    path = directory / f"{listing.id}.json"
    path.write_bytes(listing.to_bytes())
    return path


@pytest.mark.parametrize("count", [0, 3, AS_TUPLE + 1])
def test_a_stored_listing_is_what_was_stored(tmp_path: Path, count: int) -> None:
    """File by file, with its id; one of very many is never held."""
    files = tuple(
        ListedFile(f"d/{n:06} é\"'.bin", n, hex_digest(n), (hex_digest(-n),) * (n % 3))
        for n in range(count)
    )
    listing = Listing(files)
    found = load_listing(stored(listing, tmp_path))
    assert found == listing
    assert found.id == listing.id
    assert isinstance(found.files, Packed) == (count > AS_TUPLE)


def test_what_is_no_listing_of_this_version_is_told(tmp_path: Path) -> None:
    """One that was changed, one that was cut, and one that a newer version wrote."""
    path = stored(Listing((ListedFile("w", 1, "0" * 64),)), tmp_path)
    whole = path.read_bytes()
    for wrong in (whole.replace(b'"w"', b'"v"'), whole[:-5]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="another digest than its name"):
            load_listing(path)
    newer = {**json.loads(whole), "version": 2}
    other = tmp_path / f"{hex_digest(newer)}.json"
    other.write_bytes(json.dumps(newer, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(ValueError, match="version 2 is newer"):
        load_listing(other)
