"""Small contents of a mirror in packs: how they get there, what a dead writer left, what goes and what is repaired."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    impatient,
    left_behind,
    leftovers,
    mirror_at,
    place_of,
    stored,
)
from tests.support.weights_data import noise
from trainctl.errors import SourceGone
from trainctl.node.content.digests import Digests
from trainctl.node.content.pack_index import rows_of
from trainctl.weights.mirror import DirectoryMirror, Reference, collect_packs, packing
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collected, Collecting, collect
from trainctl.weights.mirror.fetch import Tally
from trainctl.weights.mirror.hashed import hash_all
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

MIB = 2**20
URI = "memory://model"
OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")


def fill(
    mirror: DirectoryMirror,
    files: Mapping[str, bytes],
    reference: Reference = REFERENCE,
    *,
    announce: bool = True,
) -> MemorySource:
    """Mirror these files for a reference; the source that was asked."""
    source = MemorySource(dict(files), announce=announce, piece=MIB)
    resolved = source.resolve(f"{URI}/{reference.address}", None, None)
    mirror.mirror(resolved, source, reference, parallelism=1)
    return source


def listing_of(mirror: DirectoryMirror, reference: Reference = REFERENCE) -> str:
    record = mirror._layout.read_reference(
        mirror._layout.reference(reference.lineage, reference.address)
    )
    assert record is not None
    return str(record["listing"])


def packs(root: Path) -> list[list[bytes]]:
    """The contents of each pack, in the order in which they lie there; packs by their first."""
    found = []
    for index in root.glob("packs/*/index"):
        data = (index.parent / "data").read_bytes()
        rows = sorted(rows_of(index.read_bytes()), key=lambda row: row.offset)
        found.append([data[row.offset : row.offset + row.length] for row in rows])
    return sorted(found)


def gc(mirror: DirectoryMirror, **asked: object) -> Collected:
    """Collect without waiting."""
    return collect(mirror, replace(Collecting(grace_seconds=0), **asked))  # type: ignore[arg-type]


def numbered(count: int, size: int = 10) -> dict[str, bytes]:
    return {f"{number:04}": b"%0*d" % (size, number) for number in range(count)}


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1])
def test_contents_below_a_mebibyte_lie_in_packs(tmp_path: Path, size: int) -> None:
    """An empty one too; from a MiB on a content is a file of its own."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"w": noise(size)})
    alone = [path.stat().st_size for path in tmp_path.glob("blobs/sha256/*/*")]
    assert (packs(tmp_path), alone) == (([[noise(size)]], []) if size < MIB else ([], [size]))
    assert contents(mirror, listing_of(mirror)) == {"w": noise(size)}
    assert_sound(tmp_path)


def test_neighbours_in_a_listing_are_neighbours_in_a_pack(tmp_path: Path) -> None:
    """Hundreds of files make a pack, its index, a listing and a reference, and no more."""
    files = numbered(600)
    mirror = mirror_at(tmp_path)
    fill(mirror, files)
    assert packs(tmp_path) == [list(files.values())]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "sizes"), [("MOST_BYTES", [3, 3, 1]), ("MOST_CONTENTS", [3, 3, 1])]
)
def test_a_pack_that_is_full_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, sizes: list[int]
) -> None:
    """It takes what just fits, and not a byte or a content more."""
    monkeypatch.setattr(packing, limit, 30 if limit == "MOST_BYTES" else 3)
    mirror = mirror_at(tmp_path)
    fill(mirror, numbered(7))
    assert [len(pack) for pack in packs(tmp_path)] == sizes
    assert_sound(tmp_path)


@pytest.mark.parametrize("announce", [True, False])
def test_the_same_content_is_put_into_one_pack_once(tmp_path: Path, *, announce: bool) -> None:
    """Under many names of a source, and of another source."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {f"{number}": b"same" for number in range(50)}, announce=announce)
    fill(mirror, {"other": b"same", "own": b"more"}, OTHER, announce=announce)
    assert packs(tmp_path) == [[b"more"], [b"same"]]


def test_a_small_file_of_its_own_is_read_as_ever(tmp_path: Path) -> None:
    """As mirrors have them from before there were packs: it is not fetched again, verified, and collected."""
    mirror = mirror_at(tmp_path)
    source = fill(mirror, {"w": b"old"})
    digest = next(iter(stored(tmp_path)))
    blob = mirror._layout.blob(digest)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"old")
    blob.chmod(0o444)
    for path in tmp_path.glob("packs/*/*"):
        path.unlink()
    source.asked.clear()

    again = fill(mirror, {"w": b"old"})

    assert again.asked == []
    assert contents(mirror, listing_of(mirror)) == {"w": b"old"}
    assert verify(mirror, Verifying()).blobs == 1
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    assert (gc(mirror).bytes, stored(tmp_path)) == (3, {})


@pytest.mark.parametrize("announce", [True, False])
def test_what_was_written_of_a_pack_is_not_fetched_again(tmp_path: Path, *, announce: bool) -> None:
    """A writer that died left a pack without an index: the next makes one of what is right in it."""
    files = numbered(600)
    _, left, whole = left_behind(tmp_path, files, announce=announce)
    data = bytearray((left / "data").read_bytes())
    data[15] ^= 1
    (left / "data").write_bytes(data)
    with (left / "journal").open("ab") as journal:
        journal.write(b"cut")
    mirror = mirror_at(tmp_path)

    source = fill(mirror, files, announce=announce)

    assert [path for path, _ in source.asked] == ["0001", *sorted(files)[whole:]]
    assert contents(mirror, listing_of(mirror)) == files
    assert leftovers(tmp_path) == []
    assert_sound(tmp_path)


def test_a_pack_that_nobody_needs_goes(tmp_path: Path) -> None:
    """With its index; a dry run says so beforehand, and one of which half is needed stays."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": b"2" * 100})
    fill(mirror, {"a": b"1" * 100}, OTHER)
    fill(mirror, {"c": b"3" * 50}, replace(OTHER, address="weights.gone"))
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    mirror.drop_reference(OTHER.lineage, "weights.gone")

    told, report = gc(mirror, dry_run=True), gc(mirror)

    assert (told.bytes, told.blobs) == (report.bytes, report.blobs) == (50, 1)
    assert packs(tmp_path) == [[b"1" * 100, b"2" * 100]]


def test_a_pack_of_which_little_is_needed_is_left_for_another(tmp_path: Path) -> None:
    """What is needed of it lies in a new one; who has the old one open reads on."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": b"2" * 100, "c": b"3" * 10})
    fill(mirror, {"a": b"1" * 100}, OTHER)
    place = place_of(mirror, next(one for one, size in stored(tmp_path).items() if size == 10))
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)

    with Path(place.path).open("rb") as reader:
        told, report = gc(mirror, dry_run=True), gc(mirror)
        reader.seek(place.offset)
        read = reader.read(place.length)

    assert (told.bytes, told.blobs) == (report.bytes, report.blobs) == (110, 2)
    assert packs(tmp_path) == [[b"1" * 100]]
    assert contents(mirror, listing_of(mirror, OTHER)) == {"a": b"1" * 100}
    assert read == b"3" * 10
    assert_sound(tmp_path)


def test_of_a_content_in_two_packs_one_goes(tmp_path: Path) -> None:
    """Two writers that knew nothing of each other both put it there."""
    mirror, beside = mirror_at(tmp_path / "one"), mirror_at(tmp_path / "two")
    for each in (mirror, beside):
        fill(each, {"a": b"1" * 100})
    (pack,) = beside.root.glob("packs/*")
    pack.rename(mirror.root / "packs" / pack.name)

    report = gc(mirror)

    assert (report.bytes, report.blobs) == (100, 1)
    assert contents(mirror, listing_of(mirror)) == {"a": b"1" * 100}


def test_what_only_seems_to_lie_in_another_pack_too_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents are told apart by parts of their digests, which may be the same once in many millions."""

    class Alike(Digests):
        def add(self, sha256: str) -> bool:
            super().add(sha256)
            return False

    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": b"2" * 300})
    fill(mirror, {"a": b"1" * 100}, OTHER)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    monkeypatch.setattr(collect_packs, "Digests", Alike)

    report = gc(mirror)

    assert (report.bytes, report.blobs) == (300, 1)
    assert contents(mirror, listing_of(mirror, OTHER)) == {"a": b"1" * 100}


def test_many_packs_that_are_small_become_one(tmp_path: Path) -> None:
    """As many sources with a few small files leave them; a few of them stay as they are."""
    mirror = mirror_at(tmp_path)
    for number in range(20):
        fill(mirror, {"config": b"%d" % number}, replace(OTHER, address=f"weights.{number}"))
        if number == 10:
            few = gc(mirror)
            assert len(packs(tmp_path)) == 11
    report = gc(mirror)
    assert (few.bytes, report.bytes, report.blobs) == (0, 0, 0)
    (pack,) = packs(tmp_path)
    assert sorted(pack) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("kept", [0, 100])
def test_a_pack_that_is_needed_again_meanwhile_stays(tmp_path: Path, kept: int) -> None:
    """A writer that comes in the grace period asks upstream for nothing, and finds all it was promised."""
    mirror = mirror_at(tmp_path)
    files = {"a": b"1" * kept, "b": b"2" * 200, "c": b"3" * 50}
    fill(mirror, files)
    if kept:
        fill(mirror, {"a": b"1" * kept}, OTHER)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    asked = []

    def write(seconds: float) -> None:
        asked.append(fill(mirror, files).asked)

    report = gc(mirror, grace_seconds=1.0, wait=write)

    assert (asked, report.bytes) == ([[]], 0)
    assert contents(mirror, listing_of(mirror)) == files
    assert_sound(tmp_path)


def test_what_is_left_of_a_pack_that_was_half_removed_goes(tmp_path: Path) -> None:
    """Data without an index is nobody's: nothing is found in it, and the next collection takes it."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100})
    half = tmp_path / "packs" / ("0" * 32)
    half.mkdir()
    (half / "data").write_bytes(b"2" * 77)

    assert verify(mirror, Verifying()).findings == ()
    assert gc(mirror).bytes == 77
    assert not half.exists()
    assert contents(mirror, listing_of(mirror)) == {"a": b"1" * 100}


def test_a_slice_that_is_wrong_keeps_its_pack(tmp_path: Path) -> None:
    """A collection carries nothing wrong into a new pack: that is a verification's to tell."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": b"2" * 200})
    fill(mirror, {"a": b"1" * 100}, OTHER)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    _flip(mirror, b"1" * 100)

    assert gc(mirror).bytes == 0
    assert len(verify(mirror, Verifying()).findings) == 1


def _flip(mirror: DirectoryMirror, data: bytes) -> None:
    """Have one bit of a content wrong where it lies."""
    for index in mirror.root.glob("packs/*/index"):
        path = index.parent / "data"
        at = path.read_bytes().find(data)
        if at >= 0:
            path.chmod(0o644)
            with path.open("r+b") as stream:
                stream.seek(at)
                stream.write(bytes([data[0] ^ 1]))


def _verified(mirror: DirectoryMirror, source: MemorySource) -> Verified:
    def origin(record: Mapping[str, object], halt: threading.Event) -> Origin:
        resolved = source.resolve(str(record["source"]), None, None)
        return Origin(source, resolved, None, impatient())

    return verify(mirror, Verifying(repair=True, origins=origin))


def test_only_what_is_wrong_in_a_pack_is_fetched_again(tmp_path: Path) -> None:
    """All of it into one new pack; what is right beside it is put into another."""
    files = numbered(100)
    mirror = mirror_at(tmp_path)
    source = fill(mirror, files)
    for name in ("0007", "0013", "0042"):
        _flip(mirror, files[name])
    source.asked.clear()

    report = _verified(mirror, source)

    assert {one.outcome for one in report.findings} == {Outcome.REPAIRED}
    assert sorted(path for path, _ in source.asked) == ["0007", "0013", "0042"]
    assert sorted(map(len, packs(tmp_path))) == [3, 97]
    assert contents(mirror, listing_of(mirror)) == files
    assert _verified(mirror, source).findings == ()
    assert_sound(tmp_path)


def test_a_pack_that_is_lost_is_fetched_again(tmp_path: Path) -> None:
    """Whether its data is gone, its index, or all of it: into one pack."""
    files = numbered(50)
    for lost in ("data", "index", "pack"):
        mirror = mirror_at(tmp_path / lost)
        source = fill(mirror, files)
        (pack,) = mirror.root.glob("packs/*")
        for path in pack.iterdir():
            if lost in (path.name, "pack"):
                path.unlink()

        report = _verified(mirror, source)

        assert [one.outcome for one in report.findings] == [Outcome.REPAIRED] * 50
        assert contents(mirror, listing_of(mirror)) == files
        assert len(packs(mirror.root)) == 1


def test_what_lies_right_in_another_pack_is_asked_of_nobody(tmp_path: Path) -> None:
    """A content of two packs that is wrong in one of them is repaired by leaving that."""
    mirror, beside = mirror_at(tmp_path / "one"), mirror_at(tmp_path / "two")
    for each in (mirror, beside):
        source = fill(each, {"a": b"1" * 100})
    _flip(mirror, b"1" * 100)
    (pack,) = beside.root.glob("packs/*")
    pack.rename(mirror.root / "packs" / pack.name)
    source.asked.clear()

    report = _verified(mirror, source)

    assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
    assert source.asked == []
    assert packs(mirror.root) == [[b"1" * 100]]


def test_a_repair_beside_another_loses_nothing(tmp_path: Path) -> None:
    """Two that found the same pack wrong both leave it for another; what is right in it stays."""
    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": b"2" * 100})
    _flip(mirror, b"1" * 100)
    layout = mirror._layout
    found = [hash_all(layout, Tally(200, None), 1) for _ in range(2)]

    for one in found:
        one.leave_wrong(layout)

    assert packs(tmp_path) == [[b"2" * 100]]
    assert leftovers(tmp_path) == []


def test_what_upstream_has_no_more_is_gone_from_its_pack(tmp_path: Path) -> None:
    """With the listing that needs it; the others of that pack stay."""
    mirror = mirror_at(tmp_path)
    source = fill(mirror, {"a": b"1" * 100, "b": b"2" * 100})
    _flip(mirror, b"1" * 100)
    listing = listing_of(mirror)

    def gone(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise SourceGone("it is gone")

    report = verify(mirror, Verifying(repair=True, origins=gone))

    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert not mirror.has_listing(listing)
    assert packs(tmp_path) == [[b"2" * 100]]
    source.asked.clear()
    assert fill(mirror, source.files).asked == [("a", 0)]


def test_packs_count_in_what_a_mirror_holds(tmp_path: Path) -> None:
    """Their contents' bytes, and not those of indexes."""
    from trainctl.weights.mirror.known import stored_bytes

    mirror = mirror_at(tmp_path)
    fill(mirror, {"a": b"1" * 100, "b": os.urandom(MIB)})
    assert stored_bytes(mirror) == MIB + 100
