from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    leftovers,
    mirror_at,
    stored,
)
from tests.support.weights_data import noise
from trainctl.errors import SourceBusy, SourceWrong

CHUNK = 64
DATA = noise(5 * CHUNK + 17)
PIECES = len(DATA) // 7 + 1


@pytest.mark.parametrize("pieces", range(PIECES))
def test_a_transfer_cut_anywhere_resumes_at_its_last_good_chunk(
    pieces: int, tmp_path: Path
) -> None:
    """Whatever had arrived, the next attempt asks for no chunk again that was complete, and ends with the same content."""
    source = MemorySource({"w": DATA}, cut_after=pieces, error=SourceBusy("busy"))
    resolved = source.resolve("file:///x", None, None)
    with pytest.raises(SourceBusy):
        mirror_at(tmp_path, CHUNK, attempts=1).mirror(resolved, source, REFERENCE)
    assert not list(tmp_path.glob("blobs/sha256/*/*"))
    source.cut_after = None
    source.asked.clear()
    mirror = mirror_at(tmp_path, CHUNK)
    resumed = mirror.mirror(resolved, source, REFERENCE)
    assert source.asked == [("w", pieces * 7 // CHUNK * CHUNK)]
    fresh = mirror_at(tmp_path / "other", CHUNK).mirror(resolved, source, REFERENCE)
    assert resumed.id == fresh.id
    assert (resumed.files[0].size, len(resumed.files[0].chunks)) == (len(DATA), 6)
    assert leftovers(tmp_path) == []
    assert_sound(tmp_path)


@given(st.integers(0, len(DATA) * 8 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_one_wrong_bit_is_always_noticed(bit: int, small: bool) -> None:
    """A single flipped bit anywhere ends in SourceWrong that names the file, and nothing has a final name."""
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << (bit % 8)
    source = MemorySource({"deep/w.bin": DATA})
    resolved = source.resolve("file:///x", None, None)
    source.files = {"deep/w.bin": bytes(damaged)}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with pytest.raises(SourceWrong, match=r"deep/w\.bin"):
            mirror_at(root, 2**20 if small else CHUNK).mirror(resolved, source, REFERENCE)
        assert not stored(root)
        assert not list(root.glob("listings/*"))
        assert leftovers(root) == []


@given(st.integers(0, 3 * CHUNK - 1))
@settings(max_examples=40, deadline=None)
def test_a_partial_that_rotted_is_fetched_again_from_there(position: int) -> None:
    """A byte of the partial that changed on the disk costs its chunk and what follows, and never reaches the blob."""
    source = MemorySource({"w": DATA}, cut_after=30, error=SourceBusy("busy"))
    resolved = source.resolve("file:///x", None, None)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with pytest.raises(SourceBusy):
            mirror_at(root, CHUNK, attempts=1).mirror(resolved, source, REFERENCE)
        (partial,) = root.glob("partial/*/data")
        rotten = bytearray(partial.read_bytes())
        rotten[position] ^= 1
        partial.write_bytes(rotten)
        source.cut_after = None
        source.asked.clear()
        mirror = mirror_at(root, CHUNK)
        listing = mirror.mirror(resolved, source, REFERENCE)
        assert source.asked == [("w", position // CHUNK * CHUNK)]
        assert contents(mirror, listing.id) == {"w": DATA}
