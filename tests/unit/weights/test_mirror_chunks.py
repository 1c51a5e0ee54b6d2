"""Larger contents of a mirror's directory, of which somebody says other chunks than they have: nodes would refuse each of these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, contents, mirror_at
from tests.support.weights_data import noise
from trainctl.base.json import canonical
from trainctl.base.listing import Listing
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

CHUNK = 1000
FILES = {"large": noise(2500), "small": b"small"}


class Mirrored:
    """A mirror of the files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = MemorySource(dict(FILES), announce=False)
        self.resolved = self.source.resolve("memory://model", None, None)
        self.listing = self.bring()
        self.source.asked.clear()

    def bring(self) -> Listing:
        """Mirror the source."""
        return mirror_at(self.root, CHUNK).mirror(self.resolved, self.source, REFERENCE)

    def verify(self, *, repair: bool = False) -> Verified:
        """Read it all."""
        return verify(mirror_at(self.root, CHUNK), Verifying(repair=repair))

    def forge_listing(self) -> Path:
        """One that is what its name says, with a wrong chunk, to which the reference leads."""
        layout = mirror_at(self.root, CHUNK)._layout
        large, small = self.listing.files
        chunks = (large.chunks[0], "0" * 64, large.chunks[2])
        forged = Listing((large._replace(chunks=chunks), small))
        layout.listing(forged.id).write_bytes(forged.to_bytes())
        layout.listing(self.listing.id).unlink()
        path = layout.reference(REFERENCE.lineage, REFERENCE.address)
        said = json.loads(path.read_bytes())
        del said["check"]
        path.write_bytes(checked({**said, "listing": forged.id}))
        return layout.listing(forged.id)


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def test_a_record_with_wrong_chunks_is_told_and_written_anew(mirrored: Mirrored) -> None:
    """By the content, which is right."""
    records = sorted(mirrored.root.glob("fingerprints/*/*.json"))
    right = [one.read_bytes() for one in records]
    for one in records:
        said = json.loads(one.read_bytes())
        said["chunks"][1] = "0" * 64
        one.write_bytes(canonical(said))

    seen = mirrored.verify()
    mended = mirrored.verify(repair=True)

    assert [(one.path, one.what, one.outcome) for one in seen.findings] == [
        (one, "chunks changed", Outcome.WRONG) for one in records
    ]
    assert {one.outcome for one in mended.findings} == {Outcome.REPAIRED}
    assert [one.read_bytes() for one in records] == right
    assert mirrored.verify().findings == ()


def test_a_listing_with_wrong_chunks_goes_and_is_written_anew(mirrored: Mirrored) -> None:
    """The next apply does that, and fetches nothing."""
    path = mirrored.forge_listing()

    seen = mirrored.verify()
    mended = mirrored.verify(repair=True)
    listing = mirrored.bring()

    what = "listing has wrong chunks"
    assert [(one.path, one.what, one.outcome, one.detail) for one in seen.findings] == [
        (path, what, Outcome.WRONG, "large")
    ]
    assert seen.findings[0].sources == ("memory://model",)
    assert [(one.path, one.outcome) for one in mended.findings] == [(path, Outcome.REMOVED)]
    assert listing.id == mirrored.listing.id
    assert mirrored.source.asked == []
    assert contents(mirror_at(mirrored.root, CHUNK), listing.id) == FILES
    assert mirrored.verify().findings == ()
