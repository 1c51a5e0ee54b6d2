"""Small files in a bucket's mirror: put together into packs, found there, verified, repaired and collected."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket_mirrors import (
    assert_sound,
    await_tick,
    contents,
    counted,
    gc,
    names,
)
from tests.support.buckets import Bucket, moto, rclone
from tests.support.mirrors import REFERENCE, MemorySource
from tests.support.weights_data import noise
from trainctl.base.listing import Listing, ResolvedSource
from trainctl.errors import SourceBusy, SourceCut, SourceGone, StorageError
from trainctl.objects.store import Bucket as OpenBucket
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket import stored as stored_module
from trainctl.weights.bucket.beating import Beating
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.stored import Stored
from trainctl.weights.bucket.where import Where
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.verify import Outcome

pytestmark = pytest.mark.integration

OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")
SMALL = {f"d/{n:03}.txt": noise(100, n) for n in range(100)}
Make = Callable[[], BucketMirror]


@pytest.fixture(scope="module", params=["moto", "rclone"])
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    """A server that takes conditions, and one that doesn't."""
    if request.param == "moto":
        with moto() as one:
            yield one
    else:
        with rclone(tmp_path_factory.mktemp("s3") / "root") as one:
            yield one


def resolved(source: MemorySource, uri: str = "hf://acme/model") -> ResolvedSource:
    return source.resolve(uri, None, None)


def bring(
    mirror: BucketMirror,
    files: dict[str, bytes],
    reference: Reference = REFERENCE,
    uri: str = "hf://acme/model",
    **more: Any,
) -> tuple[Listing, MemorySource]:
    """Mirror such a source; its listing, and the source."""
    source = MemorySource(files, **more)
    return mirror.mirror(resolved(source, uri), source, reference), source


def one_pack(mirror: BucketMirror) -> str:
    """The only pack that is there."""
    (found,) = names(mirror, keys.SLICES)
    return keys.stem(found)


def upstream(
    mirror: BucketMirror, source: MemorySource
) -> Callable[[object, threading.Event], Origin]:
    return lambda record, halt: Origin(source, resolved(source), None, mirror.retry)


def gone(record: object, halt: threading.Event) -> Origin:
    raise SourceGone("it is no more")


def test_small_files_cost_three_requests_for_a_pack(make: Make) -> None:
    """100 files of 100 bytes are three packs of 4 KiB: no object and no request for each file, and all of them come back."""
    client = make()

    listing, _ = bring(client, SMALL)

    assert contents(make(), listing.id) == SMALL
    assert len(names(client, keys.BLOBS)) == len(names(client, keys.SLICES)) == 3
    assert counted(client).asked["put"] < 3 * 3 + 8
    assert names(client, keys.PARTIAL) == []


def test_neighbours_in_a_listing_are_neighbours_in_a_pack(make: Make) -> None:
    """Files lie in their packs in the order of their paths, end to end, however they arrived."""
    listing, _ = bring(make(), SMALL)

    for one in names(make(), keys.SLICES):
        slices = packs.load(make().shelf.objects, keys.stem(one)) or ()
        order = [
            number for number, file in enumerate(listing.files) for each in slices if each.sha256 == file.sha256
        ]  # fmt: skip
        assert [each.sha256 for each in slices] == [listing.files[n].sha256 for n in order]
        assert [each.offset for each in slices] == [100 * n for n in range(len(slices))]
        assert order == list(range(order[0], order[0] + len(slices)))


def test_two_who_bring_the_same_make_the_same_packs(make: Make) -> None:
    """Which file goes into which pack depends on nothing but what is missing: the second writes what is there already."""
    bring(make(), SMALL, announce=False)
    before = names(make(), keys.BLOBS, keys.SLICES)
    others = names(make(), keys.FINGERPRINTS, keys.LISTINGS, keys.PACKS)
    make().shelf.objects.delete(others)

    bring(make(), SMALL, OTHER, announce=False)

    assert names(make(), keys.BLOBS, keys.SLICES) == before


def test_small_content_that_is_announced_is_found_in_another_sources_pack(make: Make) -> None:
    """It costs no byte of upstream, and who reads the second listing is told of the first source's pack."""
    bring(make(), SMALL)

    listing, source = bring(make(), {**SMALL, "new": b"new"}, OTHER, "hf://else/model")

    assert source.asked == [("new", 0)]
    where = Where(make().shelf)
    places = where.of(listing.id, [one.sha256 for one in listing.files], lost=False)
    assert None not in places


def test_packs_that_were_put_before_a_transfer_broke_are_not_fetched_again(make: Make) -> None:
    """Of files that upstream doesn't announce, the marks of packs tell what they turned out to be."""
    source = MemorySource(SMALL, announce=False, piece=100)
    source.cut_after, source.error = 60, SourceCut("gone")
    client = replace(make(), retry=replace(make().retry, attempts=1))
    with pytest.raises(SourceCut):
        client.mirror(resolved(source), source, REFERENCE)
    kept = len(make().shelf.marked(resolved(source)).whole)
    source.cut_after, source.asked = None, []

    listing = make().mirror(resolved(source), source, REFERENCE)

    assert kept >= 40
    assert len(source.asked) == len(SMALL) - kept
    assert contents(make(), listing.id) == SMALL
    assert names(make(), keys.PARTIAL) == []
    assert_sound(make())


def test_a_flipped_byte_in_a_pack_is_found_by_the_files_name_and_mended(make: Make) -> None:
    """The one file is fetched again, and the pack is as it was."""
    files = {f"{n}": noise(100, n) for n in range(9)}
    listing, source = bring(make(), files)
    objects, pack = make().shelf.objects, one_pack(make())
    data = bytearray(objects.get(keys.blob(pack)) or b"")
    data[250] ^= 1
    objects.put(keys.blob(pack), data)
    source.asked = []

    found = make().verify(None)
    mended = make().verify(upstream(make(), source))

    wrong = next(one.sha256 for one in listing.files if one.path == "2")
    assert [(one.what, one.outcome, one.path, one.bytes) for one in found.findings] == [
        ("changed", Outcome.WRONG, Path(keys.blob(pack)) / wrong, 100)
    ]
    assert found.findings[0].sources == ("hf://acme/model",)
    assert found.findings[0].detail == mended.findings[0].detail == "2"
    assert [one.outcome for one in mended.findings] == [Outcome.REPAIRED]
    assert source.asked == [("2", 0)]
    assert make().verify(None).findings == ()
    assert one_pack(make()) == pack
    assert contents(make(), listing.id) == files


def test_what_is_lost_of_a_pack_leaves_the_rest_as_it_is(make: Make) -> None:
    """A file whose source is gone takes its listing along; another listing's files of that pack are objects of their own then."""
    mine = {f"{n}": noise(100, n) for n in range(9)}
    bring(make(), mine)
    theirs = {path: mine[path] for path in mine if path != "2"}
    listing, _ = bring(make(), theirs, OTHER, "hf://else/model")
    objects, pack = make().shelf.objects, one_pack(make())
    data = bytearray(objects.get(keys.blob(pack)) or b"")
    data[250] ^= 1
    objects.put(keys.blob(pack), data)

    mended = make().verify(gone)

    assert [one.outcome for one in mended.findings] == [Outcome.REMOVED]
    assert [keys.stem(one) for one in names(make(), keys.LISTINGS)] == [listing.id]
    assert contents(make(), listing.id) == theirs
    assert len(names(make(), keys.BLOBS)) == 8
    assert names(make(), keys.SLICES) == []
    assert [one.what for one in make().verify(None).findings] == ["listing missing"]


@pytest.mark.parametrize("record", [b"{", None])
def test_a_pack_that_nobody_can_read_is_replaced_by_its_files(
    make: Make, record: bytes | None
) -> None:
    """Where the record of its slices is damaged or gone, what it named is missing, and is fetched again as objects of their own."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    listing, source = bring(make(), files)
    key = keys.slices(one_pack(make()))
    if record is None:
        make().shelf.objects.delete([key])
    else:
        make().shelf.objects.put(key, record)

    found = make().verify(None)
    make().verify(upstream(make(), source))

    missing = [one for one in found.findings if one.what == "missing"]
    assert len(missing) == 5
    assert {one.what for one in found.findings if one not in missing} == (
        {"slices changed" if record else "packs changed"}
    )
    assert make().verify(None).findings == ()
    assert contents(make(), listing.id) == files
    assert_sound(make())


def test_small_files_that_are_objects_of_their_own_stay_what_they_are(make: Make) -> None:
    """As they were before there were packs: they are read, verified, and kept by a collection."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    listing, _ = bring(make(), files)
    objects, pack = make().shelf.objects, one_pack(make())
    for one in listing.files:
        objects.put(keys.blob(one.sha256), files[one.path])
    objects.delete([keys.packs(listing.id), keys.slices(pack), keys.blob(pack)])
    await_tick(make())

    again, source = bring(make(), files, OTHER)
    gc(make())

    assert again == listing
    assert source.asked == []
    assert contents(make(), listing.id) == files
    assert make().verify(None).findings == ()
    assert Where(make().shelf).of(listing.id, [listing.files[0].sha256], lost=False) == [None]


def test_a_pack_goes_when_nobody_uses_it(make: Make) -> None:
    """All of its files are counted, and nothing of it is left."""
    kept, _ = bring(make(), {"a": noise(100, 1), "b": noise(100, 2)})
    bring(make(), {f"{n}": noise(100, n) for n in range(10, 15)}, OTHER, "hf://else/model")
    make().drop_reference(OTHER.lineage, OTHER.address)
    await_tick(make())

    preview = make().collect(Collecting(dry_run=True))
    found = make().collect(Collecting(grace_seconds=0))

    assert (preview.blobs, preview.bytes) == (found.blobs, found.bytes) == (5, 500)
    assert len(names(make(), keys.BLOBS, keys.SLICES, keys.PACKS)) == 3
    assert contents(make(), kept.id) == {"a": noise(100, 1), "b": noise(100, 2)}


@pytest.mark.parametrize(("used", "packs_again"), [(4, True), (5, False)])
def test_a_pack_of_which_less_than_half_is_used_is_put_again(
    make: Make, used: int, packs_again: bool
) -> None:
    """What is used of it lies in another pack then, where who delivers finds it; one that is used more is left alone."""
    files = {f"{n}": noise(100, n) for n in range(10)}
    bring(make(), files)
    some = {path: files[path] for path in sorted(files)[::2][:used]}
    listing, _ = bring(make(), some, OTHER, "hf://else/model")
    before = one_pack(make())
    delivering = Where(make().shelf)
    wanted = [one.sha256 for one in listing.files]
    held = delivering.of(listing.id, wanted, lost=False)
    make().drop_reference(REFERENCE.lineage, REFERENCE.address)
    await_tick(make())

    preview = make().collect(Collecting(dry_run=True))
    found = make().collect(Collecting(grace_seconds=0))

    assert (preview.blobs, preview.bytes) == (found.blobs, found.bytes)
    assert found.blobs == (10 - used if packs_again else 0)
    assert found.bytes == (100 * (10 - used) if packs_again else 0)
    assert (one_pack(make()) != before) is packs_again
    assert contents(make(), listing.id) == some
    assert make().stored_bytes() == (100 * used if packs_again else 1000)
    assert {place.pack for place in held if place} == {before}
    for where in (delivering, Where(make().shelf)):
        places = where.of(listing.id, wanted, lost=where is delivering)
        assert {place.pack for place in places if place} == {one_pack(make())}
    assert gc(make()) == 0


def test_small_packs_of_the_same_projects_become_one(make: Make) -> None:
    """As many small sources leave them, below a quarter of the largest; four are enough. All is read as before, from one pack, and the next collection has nothing to do."""
    listings = [
        bring(make(), {"a": noise(200, n), "b": noise(50, n)}, refers(n), f"hf://acme/{n}")[0]
        for n in range(3)
    ]
    large, _ = bring(make(), {"c": noise(1100, 9)}, refers(9), "hf://acme/large")
    await_tick(make())
    few = gc(make())
    assert len(names(make(), keys.SLICES)) == 4
    listings += [bring(make(), {"a": noise(60, 5)}, refers(5), "hf://acme/5")[0]]
    await_tick(make())
    preview = make().collect(Collecting(dry_run=True))

    found = make().collect(Collecting(grace_seconds=0))

    assert (few, preview.bytes, found.bytes, found.blobs) == (0, 0, 0, 0)
    assert len(names(make(), keys.SLICES)) == len(names(make(), keys.BLOBS)) == 2
    for listing in (*listings, large):
        assert contents(make(), listing.id).keys() == {one.path for one in listing.files}
        hinted = packs.hinted(make().shelf, listing.id)
        assert set(hinted) <= {keys.stem(one) for one in names(make(), keys.SLICES)}
    assert_sound(make())
    before = names(make(), keys.BLOBS, keys.SLICES)
    await_tick(make())
    assert gc(make()) == 0
    assert names(make(), keys.BLOBS, keys.SLICES) == before


def test_a_small_file_that_is_a_chunk_of_another_stays_where_that_is(make: Make) -> None:
    """What is alone in its pack is put together with others all the same, unless a large file has it as a chunk: that is only found by its name."""
    large = noise(4096 + 90)
    files = [{"a": large[4096:]}, *({"a": noise(100, n)} for n in range(1, 5))]
    listings = [bring(make(), {"large": large}, refers(9), "hf://acme/large")[0]]
    for n, one in enumerate(files):
        listings += [bring(make(), one, refers(n), f"hf://acme/{n}")[0]]
    await_tick(make())

    gc(make())

    chunk = hashlib.sha256(large[4096:]).hexdigest()
    assert keys.blob(chunk) in names(make(), keys.BLOBS)
    assert len(names(make(), keys.BLOBS)) == 3
    assert [contents(make(), one.id) for one in listings] == [{"large": large}, *files]
    assert_sound(make())


def test_packs_of_different_projects_stay_apart(make: Make) -> None:
    """A link to a pack opens all of it: what only one project mirrored is in none with what another has, however small; what both have is with its like."""
    for n in range(8):
        files = {"a": noise(100, n)}
        bring(make(), files, refers(n, "demo" if n < 4 else "other"), f"hf://acme/{n}")
    for n in range(10, 14):
        files = {"a": noise(100, n)}
        for project in ("demo", "other"):
            bring(make(), files, refers(n, project), f"hf://acme/{n}")
    await_tick(make())

    gc(make())

    digests = {n: hashlib.sha256(noise(100, n)).hexdigest() for n in (*range(8), *range(10, 14))}
    held = [
        {one.sha256 for one in packs.load(make().shelf.objects, keys.stem(name)) or ()}
        for name in names(make(), keys.SLICES)
    ]
    groups = [range(4), range(4, 8), range(10, 14)]
    assert sorted(map(sorted, held)) == sorted(sorted(digests[n] for n in some) for some in groups)
    assert_sound(make())


def refers(number: int, project: str = "demo") -> Reference:
    """One of many resources of a project."""
    return Reference(f"lineage-{project}", f"weights.n{number}", "ann@desk", project)


def test_a_pack_with_a_wrong_slice_is_not_put_again(make: Make) -> None:
    """A collection makes nothing of bytes that aren't right: they stay for a verification to find."""
    files = {f"{n}": noise(100, n) for n in range(10)}
    bring(make(), files)
    bring(make(), {"0": files["0"]}, OTHER, "hf://else/model")
    objects, pack = make().shelf.objects, one_pack(make())
    objects.put(keys.blob(pack), b"?" * 1000)
    make().drop_reference(REFERENCE.lineage, REFERENCE.address)
    await_tick(make())

    gc(make())

    assert one_pack(make()) == pack
    assert len(make().verify(None).findings) == 10


def test_files_are_planned_into_packs_by_their_sizes_alone() -> None:
    """In order, no pack larger than asked for but for one file that is, and none of more than 4,096."""
    sizes = [("a", 60), ("b", 50), ("c", 50), ("d", 200), ("e", 0), ("f", 1)]
    many = list(packs.planned(((n, 0) for n in range(5000)), 10))

    assert list(packs.planned(sizes, 100)) == [["a"], ["b", "c"], ["d"], ["e", "f"]]
    assert [len(one) for one in many] == [4096, 904]
    assert list(packs.planned([], 100)) == []


@pytest.mark.parametrize("data", [b"", b"[]", b"tctlpk1\n", packs.to_bytes([])[:-1] + b"?"])
def test_a_record_of_slices_that_says_nonsense_is_none(data: bytes) -> None:
    """Whoever reads it takes it for damaged, and nothing else happens."""
    with pytest.raises(ValueError, match="no index"):
        packs.from_bytes(data)


def test_a_record_of_slices_says_them_in_the_order_of_the_pack() -> None:
    """Whatever the order of their digests; one without bytes comes before the one that begins there."""
    slices = (packs.Slice("f" * 64, 0, 0), packs.Slice("b" * 64, 0, 7), packs.Slice("a" * 64, 7, 1))

    assert packs.from_bytes(packs.to_bytes(slices)) == slices


def test_a_writer_that_slept_while_its_pack_was_collected_says_so_and_the_next_brings_it_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices alone are believed by nobody: no listing stays, and what is gone is fetched once more."""
    source, client = MemorySource({"a": b"a", "b": b"b"}, announce=False, piece=1), make()

    def collected(what: str, key: str) -> None:
        if key.startswith(keys.LISTINGS) and what == "put":
            make().shelf.objects.delete([keys.blob(one_pack(make()))])

    counted(client).before = collected
    monkeypatch.setattr(Beating, "late", property(lambda self: True))
    with pytest.raises(StorageError, match="lost content"):
        client.mirror(resolved(source), source, REFERENCE)
    monkeypatch.undo()
    assert names(make(), keys.LISTINGS, keys.FINGERPRINTS) == []
    assert make().look([resolved(source)]).known[0].here == 0

    listing = make().mirror(resolved(source), source, REFERENCE)

    assert contents(make(), listing.id) == source.files
    assert_sound(make())


def test_a_page_that_fails_is_asked_for_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the last key that was handed out comes next: nothing twice, and nothing left out."""
    stored = counted(make()).objects
    assert isinstance(stored, Stored)
    many = [keys.listing(f"{number:064}") for number in range(10)]
    for key in many:
        stored.put(key, b"")
    asked: list[str] = []
    real = OpenBucket.list

    def flaky(self: OpenBucket, prefix: str = "", after: str = "") -> Iterator[object]:
        asked.append(after)
        for number, one in enumerate(real(self, prefix, after)):
            if len(asked) < 3 and number == 4:
                raise SourceBusy("later")
            yield one

    monkeypatch.setattr(stored_module, "_PAGE", 3)
    monkeypatch.setattr(OpenBucket, "list", flaky)

    found = [one.key for one in stored.list(keys.LISTINGS)]

    assert found == many
    assert asked == ["", many[2], many[5]]
