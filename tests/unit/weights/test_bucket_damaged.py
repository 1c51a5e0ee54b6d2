"""Records of a mirror in a bucket in which bits have flipped, or that are gone: planning goes on, nothing goes for their sake, and they are mended."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket_mirrors import Directory, contents, gc, names
from tests.support.flipping import each_flipped, flip, noticed
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from trainctl.base.json import canonical
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceDenied, StorageError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.look import referred
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.verify import Outcome, Verified

OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
CHUNK = 1000
FILES = {"large": bytes(range(250)) * 10, "a": b"first" * 100, "b": b"second", "c": b""}


class Mirrored:
    """A mirror with one source that two projects have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = MemorySource(dict(FILES), announce=False)
        self.resolved: ResolvedSource = self.source.resolve("hf://a/b", None, None)
        self.listing = self.bring(REFERENCE)
        self.bring(OTHER)
        self.source.asked.clear()

    @property
    def mirror(self) -> BucketMirror:
        """As a new process has it, which remembers nothing."""
        return BucketMirror(Shelf(Directory(self.root), CHUNK), impatient())

    def bring(self, reference: Reference) -> str:
        """Mirror the source; the listing's id."""
        return self.mirror.mirror(self.resolved, self.source, reference).id

    def reference(self, of: Reference) -> Path:
        """Where a reference lies."""
        return self.root / keys.reference(of.lineage, of.address)

    def only(self, prefix: str) -> Path:
        """Where the only object below a prefix lies."""
        (found,) = names(self.mirror, prefix)
        return self.root / found

    def record(self, of: Reference) -> dict[str, Any]:
        """What a reference says."""
        key = keys.reference(of.lineage, of.address)
        (found,) = (one for one in referred(self.mirror.shelf) if str(one.path) == key)
        return dict(found.record)

    def verify(self, *own: dict[str, Any], repair: bool = True, away: bool = False) -> Verified:
        """Verify, for a project with these references; ``away``: the source can't be asked."""

        def origins(record: object, halt: threading.Event) -> Origin:
            if away:
                raise SourceDenied("403")
            return Origin(self.source, self.resolved, None, impatient())

        return self.mirror.verify(origins if repair else None, own=own)


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    """Nothing is wrong yet."""
    return Mirrored(tmp_path / "mirror")


def test_a_flipped_bit_of_a_reference_is_noticed_wherever_it_is(mirrored: Mirrored) -> None:
    """Else a collection would take what it kept, because it names another listing."""
    path = mirrored.reference(REFERENCE)

    assert noticed(path, lambda: mirrored.record(REFERENCE)) > 400


def test_a_collection_of_what_is_not_used_drops_nothing_where_it_refuses(
    mirrored: Mirrored,
) -> None:
    """And goes on where all that lack their listing are dropped."""
    mirrored.root.joinpath(keys.listing(mirrored.listing)).unlink()
    for path, seconds in ((mirrored.reference(OTHER), 100.0), (mirrored.reference(REFERENCE), 1e9)):
        os.utime(path, (time.time() - seconds,) * 2)

    with pytest.raises(StorageError, match="is missing"):
        gc(mirrored.mirror, unused_seconds=1e6)
    stayed = mirrored.reference(REFERENCE).exists()
    os.utime(mirrored.reference(OTHER), (1, 1))
    gone = gc(mirrored.mirror, unused_seconds=1e6)

    assert stayed
    assert gone > 0
    assert names(mirrored.mirror, keys.BLOBS, keys.REFERENCES) == []


def test_a_reference_without_a_check_is_read(mirrored: Mirrored) -> None:
    """Earlier releases wrote none. One that lacks what a reference says is damaged all the same."""
    path, shelf = mirrored.reference(REFERENCE), mirrored.mirror.shelf
    record = mirrored.record(REFERENCE)
    right = shelf.document(keys.reference(REFERENCE.lineage, REFERENCE.address)) or {}
    assert right.pop("check")

    shelf.objects.put(str(path.relative_to(mirrored.root)), canonical(right))
    read = mirrored.record(REFERENCE)
    right["owmer"] = right.pop("owner")
    shelf.objects.put(str(path.relative_to(mirrored.root)), canonical(right))

    assert read == record
    with pytest.raises(StorageError, match="damaged"):
        mirrored.record(REFERENCE)


def test_a_damaged_reference_stops_a_collection_and_nothing_else(mirrored: Mirrored) -> None:
    """What others need stops nobody; only a collection has to know it."""
    flip(mirrored.reference(OTHER))
    mirror = mirrored.mirror

    looked = mirror.look([mirrored.resolved], [mirrored.listing], OTHER.lineage)
    others = mirror.look([mirrored.resolved], [mirrored.listing], REFERENCE.lineage)
    told = mirror.inventory()
    with pytest.raises(StorageError, match="damaged"):
        gc(mirror)

    assert [one.listing for one in looked.known] == [mirrored.listing]
    assert looked.listings == {mirrored.listing}
    assert [row.projects for row in told.rows] == [("demo",)]
    assert [OTHER.lineage in text for text in told.damaged] == [True]
    assert (looked.damaged, others.damaged) == (told.damaged, ())


def test_who_mirrors_writes_a_damaged_reference_anew(mirrored: Mirrored) -> None:
    """It says what it needs, whatever was there."""
    right = mirrored.record(REFERENCE)
    flip(mirrored.reference(REFERENCE))

    mirrored.bring(REFERENCE)

    assert mirrored.record(REFERENCE) == right
    assert mirrored.source.asked == []


def test_a_repair_writes_ones_own_damaged_reference_anew(mirrored: Mirrored) -> None:
    """Its project knows what it needs. Another's is told, and stays for its project."""
    mine = mirrored.record(REFERENCE)
    for of in (REFERENCE, OTHER):
        flip(mirrored.reference(of))

    told = mirrored.verify(mine, repair=False)
    report = mirrored.verify(mine)
    again = mirrored.verify(mine)

    mine_key, others_key = (
        Path(keys.reference(of.lineage, of.address)) for of in (REFERENCE, OTHER)
    )
    assert [one.outcome for one in told.findings] == [Outcome.WRONG] * 2
    assert {(one.path, one.what): one.outcome for one in report.findings} == {
        (mine_key, "reference changed"): Outcome.REPAIRED,
        (others_key, "reference changed"): Outcome.WRONG,
    }
    assert [one.path for one in again.findings] == [others_key]
    mirrored.reference(OTHER).unlink()
    assert mirrored.record(REFERENCE) == mine


def test_what_a_damaged_reference_may_need_is_not_removed(mirrored: Mirrored) -> None:
    """A wrong content that nobody else refers to: its project may repair it."""
    mirrored.reference(REFERENCE).unlink()
    mirrored.root.joinpath(keys.listing(mirrored.listing)).unlink()
    blob = mirrored.root / names(mirrored.mirror, keys.BLOBS)[0]
    flip(blob)
    flip(mirrored.reference(OTHER))

    report = mirrored.verify()

    assert {one.outcome for one in report.findings} == {Outcome.WRONG}
    assert blob.exists()


def test_a_damaged_listing_is_none_and_comes_back(mirrored: Mirrored) -> None:
    """Wherever the bit is; its contents are there, so nothing is fetched again."""
    for at in each_flipped(mirrored.root / keys.listing(mirrored.listing), every=23):
        mirror = mirrored.mirror
        looked = mirror.look([mirrored.resolved], [mirrored.listing])
        assert (at, looked.known[0].here, looked.known[0].listing, looked.listings) == (
            at, mirrored.resolved.size, None, frozenset(),
        )  # fmt: skip
        assert mirror.kept(mirrored.resolved) is None
        assert mirrored.bring(REFERENCE) == mirrored.listing
        assert contents(mirrored.mirror, mirrored.listing) == FILES

    assert mirrored.source.asked == []


@pytest.mark.parametrize(
    ("prefix", "uri", "announce"),
    [(keys.CHUNKED, "hf://else/c", True), (keys.PACKS, "hf://a/b", False)],
)
def test_a_damaged_record_stops_no_plan(
    mirrored: Mirrored, prefix: str, uri: str, announce: bool
) -> None:
    """Of another source with the same files, nor of another version: what it says is not known then, or comes from elsewhere."""
    mirrored.only(prefix).write_bytes(b"no JSON")
    source = MemorySource({**FILES, "new": b"new"}, announce=announce)
    newer = source.resolve(uri, None, None)

    (known,) = mirrored.mirror.look([newer]).known
    listing = mirrored.mirror.mirror(newer, source, OTHER)

    assert known.listing is None
    assert contents(mirrored.mirror, listing.id) == source.files
    assert set(names(mirrored.mirror, keys.LISTINGS)) > {keys.listing(mirrored.listing)}


def harmed(path: Path, *, gone: bool) -> None:
    """It is gone, or a bit of it is wrong."""
    if gone:
        path.unlink()
    else:
        flip(path, 30)


@pytest.mark.parametrize("gone", [True, False])
def test_a_collection_refuses_where_a_listing_is_lost(mirrored: Mirrored, gone: bool) -> None:
    """Nobody knows what the reference keeps: it says which listing, whose it is and what to do, and deletes nothing."""
    harmed(mirrored.root / keys.listing(mirrored.listing), gone=gone)
    before = names(mirrored.mirror)

    for more in ({"dry_run": True}, {}):
        with pytest.raises(StorageError) as raised:
            gc(mirrored.mirror, **more)
        assert raised.value.code == "mirror-damaged"
        assert mirrored.listing in raised.value.summary
        assert "hf://a/b" in raised.value.summary
        assert "mirror verify --repair" in raised.value.detail

    assert names(mirrored.mirror) == before


@pytest.mark.parametrize("gone", [True, False])
def test_a_list_goes_on_and_says_which_listing_is_lost(mirrored: Mirrored, gone: bool) -> None:
    """Nobody knows what of it others have; the other row is as ever."""
    elsewhere = MemorySource({"d": b"of another"})
    mirrored.mirror.mirror(elsewhere.resolve("hf://c/d", None, None), elsewhere, OTHER)
    harmed(mirrored.root / keys.listing(mirrored.listing), gone=gone)

    lost, other = mirrored.mirror.inventory().rows

    assert (lost.listing, lost.listing_is) == (mirrored.listing, "missing" if gone else "damaged")
    assert lost.bytes_stored == 0
    assert (other.listing_is, other.bytes_stored) == ("", len(b"of another"))


@pytest.mark.parametrize("gone", [True, False])
def test_a_repair_lists_anew_what_is_all_there(mirrored: Mirrored, gone: bool) -> None:
    """The very listing, or none: no file is fetched for it. Then a collection goes on."""
    path = mirrored.root / keys.listing(mirrored.listing)
    right = path.read_bytes()
    harmed(path, gone=gone)

    told = mirrored.verify(repair=False)
    report = mirrored.verify()

    what = "listing missing" if gone else "listing changed"
    assert [(one.what, one.outcome) for one in told.findings] == [(what, Outcome.WRONG)]
    assert told.findings[0].sources == ("hf://a/b",)
    assert [(one.what, one.outcome) for one in report.findings] == [(what, Outcome.REPAIRED)]
    assert path.read_bytes() == right
    assert mirrored.source.asked == []
    assert mirrored.verify(repair=False).findings == ()
    gc(mirrored.mirror)
    assert contents(mirrored.mirror, mirrored.listing) == FILES


def test_files_that_patterns_left_out_are_not_listed(mirrored: Mirrored) -> None:
    """A source is asked for all it has: what was mirrored of it is in its record."""
    right = mirrored.resolved
    mirrored.root.joinpath(keys.listing(mirrored.listing)).unlink()
    mirrored.source.files["left out"] = b"never mirrored"
    mirrored.resolved = mirrored.source.resolve(right.source, None, None)

    report = mirrored.verify()

    assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
    assert contents(mirrored.mirror, mirrored.listing) == FILES


def test_a_listing_that_can_not_be_written_anew_takes_nothing_away(mirrored: Mirrored) -> None:
    """Its source can't be asked: all content stays, also what is wrong, until somebody knows what it was."""
    mirrored.root.joinpath(keys.listing(mirrored.listing)).unlink()
    blob = mirrored.root / names(mirrored.mirror, keys.BLOBS)[0]
    flip(blob)
    before = names(mirrored.mirror)

    report = mirrored.verify(away=True)

    assert {one.outcome for one in report.findings} == {Outcome.WRONG}
    assert ("listing missing", "403") in {(one.what, one.detail) for one in report.findings}
    assert names(mirrored.mirror) == before


@pytest.mark.parametrize(
    ("prefix", "what"), [(keys.CHUNKED, "chunks changed"), (keys.PACKS, "packs changed")]
)
def test_a_flipped_bit_of_a_record_is_noticed_and_mended(
    mirrored: Mirrored, prefix: str, what: str
) -> None:
    """What it names is in the listing, or isn't there."""
    path = mirrored.only(prefix)
    right = path.read_bytes()

    for at in each_flipped(path, every=7):
        told = mirrored.verify(repair=False)
        assert (at, [(one.what, one.outcome) for one in told.findings]) == (
            at, [(what, Outcome.WRONG)],
        )  # fmt: skip
        if at % 5 == 0:
            report = mirrored.verify()
            assert [(one.what, one.outcome) for one in report.findings] == [
                (what, Outcome.REPAIRED)
            ]
            assert path.read_bytes() == right


def test_a_flipped_bit_of_what_a_source_turned_out_to_be_is_noticed_and_mended(
    mirrored: Mirrored,
) -> None:
    """It cost a file that came again, and nobody was told. What a reference and the listing know is written anew: nothing comes again."""
    path = mirrored.only(keys.FINGERPRINTS)
    right = path.read_bytes()

    for at in each_flipped(path, every=7):
        told = mirrored.verify(repair=False)
        assert (at, [(one.what, one.outcome, one.sources) for one in told.findings]) == (
            at, [("fingerprints changed", Outcome.WRONG, ("hf://a/b",))],
        )  # fmt: skip
        if at % 5 == 0:
            report = mirrored.verify()
            assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
            assert mirrored.verify(repair=False).findings == ()
            (known,) = mirrored.mirror.look([mirrored.resolved]).known
            assert known.listing == mirrored.listing
            assert len(path.read_bytes()) >= len(right) - 140

    assert mirrored.source.asked == []


def test_what_a_source_turned_out_to_be_goes_where_nobody_refers_to_it(
    mirrored: Mirrored,
) -> None:
    """Nobody knows what was meant. One of an earlier release has no check, and is right."""
    path = mirrored.only(keys.FINGERPRINTS)
    right, _, _ = path.read_bytes().rpartition(b',"check"')
    path.write_bytes(right + b"}")
    earlier = mirrored.verify()
    for one in (REFERENCE, OTHER):
        mirrored.reference(one).unlink()
    path.write_bytes(right)

    report = mirrored.verify()

    assert earlier.findings == ()
    assert [(one.what, one.outcome) for one in report.findings] == [
        ("fingerprints changed", Outcome.REMOVED)
    ]
    assert not path.exists()


def test_chunks_of_what_no_listing_names_are_held_against_what_is_there(
    mirrored: Mirrored,
) -> None:
    """Of a source that isn't whole; it goes, as nobody can tell what it said, and the next apply brings what is missing."""
    for one in (REFERENCE, OTHER):
        mirrored.reference(one).unlink()
    mirrored.root.joinpath(keys.listing(mirrored.listing)).unlink()
    path = mirrored.only(keys.CHUNKED)
    assert mirrored.verify(repair=False).findings == ()
    flip(path, path.read_bytes().index(b'chunks":["') + 12)

    told = mirrored.verify(repair=False)
    report = mirrored.verify()

    assert [(one.what, one.outcome) for one in told.findings] == [("chunks changed", Outcome.WRONG)]
    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert not path.exists()


def test_a_repair_that_moves_small_files_says_so(mirrored: Mirrored) -> None:
    """The pack goes where it can't be put as it was, and nothing names it any more."""
    slices = mirrored.only(keys.SLICES)
    mirrored.root.joinpath(keys.blob(slices.name)).unlink()

    mirrored.verify()

    assert mirrored.verify(repair=False).findings == ()
    assert names(mirrored.mirror, keys.PACKS) == []


@pytest.mark.parametrize("told", ["reference", "own"])
def test_a_copy_that_patterns_left_out_is_not_listed(mirrored: Mirrored, told: str) -> None:
    """Upstream announces that it is a file that was mirrored under another name: only patterns tell."""
    source = MemorySource({"a": b"same", "b": b"same"})
    everything = source.resolve("hf://c/d", None, None)
    resolved = replace(everything, files=everything.files[:1])
    knows = replace(OTHER, allow_patterns=("a",))
    listing = mirrored.mirror.mirror(resolved, source, knows if told == "reference" else OTHER).id
    mirrored.root.joinpath(keys.listing(listing)).unlink()
    mirrored.source, mirrored.resolved = source, everything

    report = mirrored.verify(knows.record({}, resolved, listing, 1.0))

    assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
    assert contents(mirrored.mirror, listing) == {"a": b"same"}
