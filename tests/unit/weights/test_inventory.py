"""What a mirror says lies there, in a directory and in a bucket: it agrees with what a collection would delete, and with what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Directory
from tests.support.flipping import flip
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from tests.support.weights_data import noise
from trainctl.errors import SourceCut
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.here import HereMirror
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.port import Mirror
from trainctl.weights.mirror.report import Inventory

MB = 2**20
CHUNK = 2 * MB
OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
FILES = {"a": noise(MB + 1, 1), "b": noise(3 * MB, 2), "c": b"small"}
SIZE = sum(map(len, FILES.values()))


def directory(root: Path) -> Mirror:
    return HereMirror(root, impatient(), chunk_bytes=CHUNK)


def bucket(root: Path) -> Mirror:
    return BucketMirror(Shelf(Directory(root), CHUNK), impatient())


@pytest.fixture(params=[directory, bucket])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Mirror:
    make: Callable[[Path], Mirror] = request.param
    return make(tmp_path / "mirror")


def bring(mirror: Mirror, reference: Reference, files: dict[str, bytes], uri: str) -> str:
    source = MemorySource(files, piece=MB)
    return mirror.mirror(source.resolve(uri, None, None), source, reference).id


def told(mirror: Mirror) -> Inventory:
    """What it says, if that agrees with what a collection says, and adds up to what is there."""
    found = mirror.inventory()
    assert found.unreferenced == mirror.collect(Collecting(dry_run=True)).bytes
    stored = sum(row.bytes_stored for row in found.rows)
    assert stored + found.unfinished + found.unreferenced == mirror.stored_bytes()
    return found


def test_what_is_needed_is_told_by_its_rows_alone(mirror: Mirror) -> None:
    """There is nothing else."""
    assert mirror.inventory() == Inventory(())
    bring(mirror, REFERENCE, FILES, "hf://a/b")
    bring(mirror, OTHER, {**FILES, "d": noise(MB, 4)}, "hf://c/d")

    found = told(mirror)

    assert [row.bytes_stored for row in found.rows] == [SIZE, MB]
    assert (found.unfinished, found.unreferenced) == (0, 0)


def test_a_version_that_is_kept_until_the_next_is_whole_has_its_row(mirror: Mirror) -> None:
    """It is what runs use meanwhile; of the one that comes only that it isn't whole."""
    listing = bring(mirror, REFERENCE, FILES, "hf://a/b")
    files = {**FILES, "d": noise(4 * MB, 5)}
    newer = MemorySource(files, piece=MB, cut_after=3, error=SourceCut("cut"))
    resolved = newer.resolve("hf://a/b", "2", None)
    for _ in range(2):  # what is kept is kept however often it is tried
        with pytest.raises(SourceCut):
            mirror.mirror(resolved, newer, REFERENCE)

    kept, coming = told(mirror).rows

    assert (coming.revision, coming.listing, coming.files, coming.bytes_stored) == ("2", None, 4, 0)
    assert (kept.revision, kept.listing, kept.files, kept.bytes) == ("1", listing, 3, SIZE)
    assert (kept.bytes_stored, kept.projects) == (SIZE, coming.projects)


def test_what_nothing_refers_to_is_told(mirror: Mirror) -> None:
    """Beside what somebody needs, and where nobody needs anything."""
    bring(mirror, REFERENCE, FILES, "hf://a/b")
    bring(mirror, OTHER, {**FILES, "d": noise(MB, 4)}, "hf://c/d")
    mirror.drop_reference(OTHER.lineage, OTHER.address)
    one = told(mirror)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    none = told(mirror)

    assert (len(one.rows), one.unreferenced) == (1, MB)
    assert none == Inventory((), unreferenced=SIZE + MB)


def test_what_is_not_whole_counts_what_came_of_it(mirror: Mirror) -> None:
    """Whole files, and of others what is there: all of it comes no second time."""
    source = MemorySource(FILES, piece=MB, cut_after=3, error=SourceCut("cut"))
    resolved = source.resolve("hf://a/b", None, None)
    with pytest.raises(SourceCut):
        mirror.mirror(resolved, source, REFERENCE)

    found = told(mirror)

    (row,) = found.rows
    (known,) = mirror.look([resolved]).known
    assert (row.listing, row.bytes_stored) == (None, 0)
    assert 0 < known.had <= found.unfinished + found.unreferenced


def test_nothing_is_called_unneeded_where_that_is_not_known(tmp_path: Path) -> None:
    """A collection would refuse: the listing of one reference is lost, or a reference can't be read."""
    root = tmp_path / "mirror"
    listing = bring(bucket(root), REFERENCE, FILES, "hf://a/b")
    bring(bucket(root), OTHER, {"e": noise(MB, 5)}, "hf://c/d")
    (root / keys.listing(listing)).unlink()
    lost = bucket(root).inventory()
    flip(root / keys.reference(REFERENCE.lineage, REFERENCE.address))
    damaged = bucket(root).inventory()

    assert [row.bytes_stored for row in lost.rows] == [0, MB]
    assert (lost.unfinished, lost.unreferenced) == (SIZE, 0)
    assert (len(damaged.rows), damaged.unfinished, damaged.unreferenced) == (1, SIZE, 0)
    assert len(damaged.damaged) == 1
