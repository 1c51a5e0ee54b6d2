"""A mirror in which any one bit is wrong: verifying finds it, and repairing makes it right."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    impatient,
    mirror_at,
    place_of,
)
from tests.support.weights_data import noise
from trainctl.errors import StorageError
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

CHUNK = 16
FILES = {"large": noise(2 * CHUNK + 3), "small": b"tiny"}
SHORT = {"one": noise(CHUNK + 1)}
"""A listing has every kind of field with this alone."""


def _verified(mirror: DirectoryMirror, source: MemorySource) -> Verified:
    def origin(record: Mapping[str, object], halt: threading.Event) -> Origin:
        resolved = source.resolve(str(record["source"]), None, None)
        return Origin(source, resolved, None, impatient())

    return verify(mirror, Verifying(True, origin, parallelism=1))


@pytest.mark.parametrize("announce", [True, False], ids=["announced", "unannounced"])
def test_every_single_flipped_bit_is_found_and_repaired(tmp_path: Path, *, announce: bool) -> None:
    """Of contents and of the listing, one after another: each is one finding, and all is right afterwards."""
    source = MemorySource(dict(FILES), announce=announce, piece=CHUNK)
    mirror = mirror_at(tmp_path, CHUNK)
    resolved = source.resolve("memory://model", None, None)
    listing = mirror.mirror(resolved, source, REFERENCE)
    for file in listing.files:
        for bit in range(8 * file.size):
            place = place_of(mirror, file.sha256)
            blob = Path(place.path)
            wrong = bytearray(blob.read_bytes())
            wrong[place.offset + bit // 8] ^= 1 << bit % 8
            blob.chmod(0o644)
            blob.write_bytes(wrong)

            found = _verified(mirror, source)

            assert [one.outcome for one in found.findings] == [Outcome.REPAIRED], (file.path, bit)
            assert contents(mirror, listing.id) == FILES

    assert _verified(mirror, source).findings == ()


@pytest.mark.parametrize(
    "every", [pytest.param(3, id="short"), pytest.param(1, id="long", marks=pytest.mark.long)]
)
def test_every_single_flipped_bit_of_an_index_is_found_and_repaired(
    tmp_path: Path, every: int
) -> None:
    """Of a pack with two contents: each is told, and afterwards the mirror is as it was, and sound. Every third is of each place in a byte."""
    files = {"small": b"tiny", "other": b"other"}
    source = MemorySource(files, piece=CHUNK)
    mirror = mirror_at(tmp_path, CHUNK)
    listing = mirror.mirror(source.resolve("memory://model", None, None), source, REFERENCE)
    size = next(tmp_path.glob("packs/*/index")).stat().st_size
    for bit in range(0, 8 * size, every):
        (index, *_) = tmp_path.glob("packs/*/index")
        wrong = bytearray(index.read_bytes())
        wrong[bit // 8 % len(wrong)] ^= 1 << bit % 8
        index.chmod(0o644)
        index.write_bytes(wrong)

        found = _verified(mirror, source)

        assert "index changed" in [one.what for one in found.findings], bit
        assert {one.outcome for one in found.findings} == {Outcome.REPAIRED}, bit
        assert contents(mirror, listing.id) == files
        assert_sound(tmp_path)

    assert _verified(mirror, source).findings == ()


def test_every_single_flipped_bit_of_a_listing_is_found(tmp_path: Path) -> None:
    """Each is; every fifth, which is one of another place in each byte, is also repaired: the listing is written anew, contents stay, and mirroring again asks upstream for nothing."""
    source = MemorySource(SHORT, announce=True, piece=CHUNK)
    mirror = mirror_at(tmp_path, CHUNK)
    resolved = source.resolve("memory://model", None, None)
    listing = mirror.mirror(resolved, source, REFERENCE)
    place = tmp_path / "listings" / f"{listing.id}.json"
    right = place.read_bytes()
    for bit in range(8 * len(right)):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        place.write_bytes(wrong)
        with pytest.raises(StorageError):
            Layout(tmp_path).check_listing(listing.id)
        if bit % 5:
            continue

        found = _verified(mirror, source)

        assert [one.outcome for one in found.findings] == [Outcome.REPAIRED], bit
        assert place.read_bytes() == right, bit
    place.write_bytes(right)
    source.asked.clear()
    assert mirror.mirror(resolved, source, REFERENCE) == listing
    assert source.asked == []
    assert contents(mirror, listing.id) == SHORT
