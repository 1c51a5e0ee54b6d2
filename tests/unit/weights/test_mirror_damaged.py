"""Records of a mirror in which bits have flipped: planning goes on, nothing goes for their sake, and who wrote them mends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.flipping import each_flipped, flip, noticed
from tests.support.mirrors import REFERENCE, MemorySource, contents, impatient
from trainctl.base.listing import ResolvedSource
from trainctl.errors import StorageError
from trainctl.weights.mirror import Reference
from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.here import HereMirror
from trainctl.weights.mirror.needs import needs
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
FILES = {"a": b"first" * 100, "b": b"second", "c": b""}


class Mirrored:
    """A mirror with one source that two projects have."""

    def __init__(self, root: Path) -> None:
        self.mirror = HereMirror(root, impatient())
        self.source = MemorySource(dict(FILES), announce=False)
        self.resolved: ResolvedSource = self.source.resolve("memory://model", None, None)
        self.listing = self.bring(REFERENCE)
        self.bring(OTHER)
        self.source.asked.clear()

    def bring(self, reference: Reference) -> str:
        """Mirror the source; the listing's id."""
        return self.mirror.mirror(self.resolved, self.source, reference).id

    def reference(self, of: Reference) -> Path:
        """Where a reference lies."""
        return self.mirror._layout.reference(of.lineage, of.address)

    def record(self, of: Reference) -> dict[str, Any]:
        """What is in it."""
        (found,) = (one for one in needs(self.mirror._layout) if one.path == self.reference(of))
        return dict(found.record)

    def verify(self, *own: dict[str, Any], repair: bool = True) -> Verified:
        """Verify, for a project with these references."""
        return verify(self.mirror, Verifying(repair=repair, own=own))


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    """Nothing is wrong yet."""
    return Mirrored(tmp_path / "mirror")


def test_a_flipped_bit_of_a_reference_is_noticed_wherever_it_is(mirrored: Mirrored) -> None:
    """Else a collection would take what it kept, because it names another listing."""
    path = mirrored.reference(REFERENCE)

    assert noticed(path, lambda: mirrored.record(REFERENCE)) > 400


def test_a_plan_goes_on_and_says_which_references_are_damaged(mirrored: Mirrored) -> None:
    """What others need stops nobody; only a collection has to know it."""
    flip(mirrored.reference(OTHER))

    looked = mirrored.mirror.look([mirrored.resolved], [mirrored.listing])
    rows = mirrored.mirror.sources()
    with pytest.raises(StorageError, match="damaged"):
        collect(mirrored.mirror, Collecting(grace_seconds=0))

    assert [one.listing for one in looked.known] == [mirrored.listing]
    assert looked.listings == {mirrored.listing}
    assert [OTHER.lineage in text for text in looked.damaged] == [True]
    assert [row.projects for row in rows] == [("demo",)]


def test_who_mirrors_writes_a_damaged_reference_anew(mirrored: Mirrored) -> None:
    """It says what it needs, whatever was there."""
    right = mirrored.record(REFERENCE)
    flip(mirrored.reference(REFERENCE))

    mirrored.bring(REFERENCE)

    assert {**mirrored.record(REFERENCE), "last_used": 0} == {**right, "last_used": 0}
    assert mirrored.source.asked == []


def test_a_damaged_listing_is_none_and_comes_back(mirrored: Mirrored) -> None:
    """Wherever the bit is; its contents are there, so nothing is fetched again."""
    mirror = mirrored.mirror

    for at in each_flipped(mirror._layout.listing(mirrored.listing)):
        looked = mirror.look([mirrored.resolved], [mirrored.listing])
        assert (at, looked.known[0].here, looked.known[0].listing, looked.listings) == (
            at, mirrored.resolved.size, None, frozenset(),
        )  # fmt: skip
        assert mirror.kept(mirrored.resolved) is None
        if at % 40 == 0:
            assert mirrored.bring(REFERENCE) == mirrored.listing
            assert contents(mirror, mirrored.listing) == FILES

    assert mirrored.source.asked == []


def test_a_repair_writes_ones_own_damaged_reference_anew(mirrored: Mirrored) -> None:
    """Its project knows what it needs. Another's is told, and stays for its project."""
    mine = mirrored.record(REFERENCE)
    for of in (REFERENCE, OTHER):
        flip(mirrored.reference(of))

    told = mirrored.verify(mine, repair=False)
    report = mirrored.verify(mine)
    again = mirrored.verify(mine)

    assert [one.outcome for one in told.findings] == [Outcome.WRONG] * 2
    assert {(one.path, one.what): one.outcome for one in report.findings} == {
        (mirrored.reference(REFERENCE), "reference changed"): Outcome.REPAIRED,
        (mirrored.reference(OTHER), "reference changed"): Outcome.WRONG,
    }
    assert [one.path for one in again.findings] == [mirrored.reference(OTHER)]
    mirrored.reference(OTHER).unlink()
    assert mirrored.record(REFERENCE) == mine


def test_what_a_damaged_reference_may_need_is_not_removed(mirrored: Mirrored) -> None:
    """A wrong content that nobody else refers to: its project may repair it."""
    mirrored.reference(REFERENCE).unlink()
    large = mirrored.mirror._layout.blob("0" * 64)
    large.parent.mkdir(parents=True)
    large.write_bytes(b"wrong")
    flip(mirrored.reference(OTHER))

    report = mirrored.verify()

    assert {one.outcome for one in report.findings} == {Outcome.WRONG}
    assert large.exists()
