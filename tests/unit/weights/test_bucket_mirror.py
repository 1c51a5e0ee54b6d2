"""A mirror in a bucket: what it holds, what it asks for, and what it never does, on servers that do and that don't take conditions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.bucket_mirrors import (
    CHUNK,
    assert_sound,
    await_tick,
    contents,
    counted,
    gc,
    marked_chunks,
    mirror_in,
    names,
)
from tests.support.buckets import Bucket, moto, rclone
from tests.support.clouds import Azure, azure
from tests.support.google_xml import GoogleXml, google_xml
from tests.support.mirrors import REFERENCE, MemorySource
from tests.support.weights_data import noise
from trainctl.base.exclusive import holder_name
from trainctl.base.json import canonical
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceCut, SourceGone, SourceWrong, StorageError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.lock import LockEntry
from trainctl.weights.locked import kept_version, locked_version
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference, fingerprint
from trainctl.weights.mirror.verify import Outcome

pytestmark = pytest.mark.integration

FILES = {
    "model.safetensors": noise(5 * CHUNK - 1280),
    "config.json": b'{"a": 1}',
    "copy/config.json": b'{"a": 1}',
    "empty": b"",
    "one": b"x" * CHUNK,
}
OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")
Make = Callable[[], BucketMirror]


@pytest.fixture(scope="module")
def moto_bucket() -> Iterator[Bucket]:
    with moto() as one:
        yield one


@pytest.fixture(scope="module")
def rclone_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with rclone(tmp_path_factory.mktemp("s3") / "root") as one:
        yield one


@pytest.fixture(scope="module")
def google_bucket() -> Iterator[GoogleXml]:
    with google_xml() as one:
        yield one


@pytest.fixture(scope="module")
def azure_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    with azure(tmp_path_factory.mktemp("azure")) as one:
        yield one


@pytest.fixture(params=["moto", "rclone", "google", "azure"])
def bucket(request: pytest.FixtureRequest) -> Bucket | GoogleXml | Azure:
    """A bucket of each platform, and of a server of S3's kind that ignores conditions."""
    found: Bucket | GoogleXml | Azure = request.getfixturevalue(f"{request.param}_bucket")
    return found


@pytest.fixture
def mirror(make: Make) -> BucketMirror:
    return make()


def resolved(source: MemorySource) -> ResolvedSource:
    return source.resolve("hf://acme/model", None, None)


def test_every_file_is_there_under_what_it_is(mirror: BucketMirror) -> None:
    """Files come back byte for byte; equal ones are stored once; no object is larger than a chunk; nothing else stays."""
    source = MemorySource(FILES)

    listing = mirror.mirror(resolved(source), source, REFERENCE)

    assert contents(mirror, listing.id) == FILES
    assert_sound(mirror)
    assert all(one.size <= CHUNK for one in mirror.shelf.objects.list(keys.BLOBS))
    assert len(names(mirror, keys.BLOBS)) == 5 + 1 + len({"pack"})
    assert names(mirror, keys.PARTIAL, keys.LEASES, keys.COLLECTIONS) == []
    assert [path for path, _ in source.asked].count("config.json") == 1


def test_another_project_with_the_same_source_fetches_nothing(make: Make) -> None:
    """What is whole is only referred to, also by another client, and both references stand."""
    first, second = MemorySource(FILES, announce=False), MemorySource(FILES, announce=False)
    listing = make().mirror(resolved(first), first, REFERENCE)

    again = make().mirror(resolved(second), second, OTHER)

    assert again == listing
    assert second.asked == []
    (row,) = make().inventory().rows
    assert row.projects == ("demo", "other")
    assert row.listing == listing.id


def test_content_that_upstream_announces_is_taken_from_any_source(make: Make) -> None:
    """Another repository with files of the same sha256 costs no byte of them, large or small."""
    first, second = MemorySource(FILES), MemorySource({**FILES, "new": b"new"})
    make().mirror(resolved(first), first, REFERENCE)
    elsewhere = replace(resolved(second), source="hf://else/model")

    known = make().look([elsewhere]).known[0]
    listing = make().mirror(elsewhere, second, OTHER)

    assert known.size - known.here == len(b"new")
    assert second.asked == [("new", 0)]
    assert contents(make(), listing.id) == {**FILES, "new": b"new"}


def test_another_version_of_a_source_brings_what_is_new(make: Make) -> None:
    """Of files that only a validator identifies, those that are as before come from the earlier version's record."""
    first, second = (
        MemorySource(one, announce=False) for one in (FILES, {**FILES, "new": b"n" * 9})
    )
    make().mirror(resolved(first), first, REFERENCE)

    known = make().look([resolved(second)]).known[0]
    make().mirror(resolved(second), second, REFERENCE)

    assert known.size - known.here == 9
    assert second.asked == [("new", 0)]


def test_a_source_that_is_whole_costs_two_requests_to_look_at(make: Make) -> None:
    """A plan of it asks for its record and for its listing, however many files it has."""
    source = MemorySource({f"f{n}": b"%d" % n for n in range(60)})
    listing = make().mirror(resolved(source), source, REFERENCE)
    client = make()

    looked = client.look([resolved(source)], [listing.id])

    assert looked.known[0].listing == listing.id
    assert looked.known[0].here == source.resolve("", None, None).size
    assert looked.listings == {listing.id}
    assert counted(client).asked.total() == 3


def test_a_version_that_is_whole_can_be_asked_for_by_its_pin(make: Make) -> None:
    """Once upstream has another: every content is there, and what it was known by stands for it; of other pins nothing is."""
    first, second = (
        MemorySource(FILES, announce=False),
        MemorySource({"new": b"new"}, announce=False),
    )
    old = resolved(first)
    listing = make().mirror(old, first, REFERENCE)
    make().mirror(resolved(second), second, REFERENCE)
    locked = LockEntry(old.source, None, None, "1", old.pin, len(old.files), old.size)
    kept = kept_version(make(), locked_version(old.source, None, locked), locked)
    assert kept is not None
    asked = len(first.asked)

    again = make().mirror(kept, first, REFERENCE)
    known = make().look([kept]).known[0]

    assert again == listing
    assert (known.listing, known.here, kept.pin) == (listing.id, old.size, old.pin)
    assert len(first.asked) == asked
    other = replace(locked, pin="sha256:" + "0" * 64)
    assert make().kept(locked_version(old.source, None, other)) is None
    assert make().kept(locked_version(old.source, "https://other.example", locked)) is None


def test_looking_writes_nothing(mirror: BucketMirror) -> None:
    """A look at an empty bucket leaves it empty."""
    source = MemorySource(FILES)

    known = mirror.look([resolved(source)], ["0" * 64])

    assert known.listings == frozenset()
    assert known.known[0].here == 0
    assert names(mirror) == []


def test_a_transfer_that_broke_is_taken_up_at_its_last_chunk(make: Make) -> None:
    """Of a large file only what no mark speaks of is asked for again; a file that was whole isn't asked for."""
    source = MemorySource(FILES, announce=False, piece=1024)
    source.cut_after, source.error = 15, SourceCut("gone")
    client = make()
    halted = replace(client, retry=replace(client.retry, attempts=1))
    with pytest.raises(SourceCut):
        halted.mirror(resolved(source), source, REFERENCE)
    marked = client.shelf.marked(resolved(source))
    kept = max(map(len, marked_chunks(client, resolved(source))), default=0)
    whole = {
        one.path
        for one in resolved(source).files
        if fingerprint(resolved(source), one) in marked.whole
    }
    source.cut_after, source.asked = None, []

    listing = make().mirror(resolved(source), source, REFERENCE)

    assert kept >= 1
    assert ("model.safetensors", kept * CHUNK) in source.asked
    assert not {path for path, _ in source.asked} & whole
    assert contents(make(), listing.id) == FILES
    assert names(make(), keys.PARTIAL) == []


def test_a_chunk_that_was_changed_meanwhile_is_fetched_again(make: Make) -> None:
    """What is read back when a transfer is resumed is held against its mark."""
    source = MemorySource(FILES, announce=False, piece=1024)
    source.cut_after, source.error = 15, SourceCut("gone")
    client = replace(make(), retry=replace(make().retry, attempts=1))
    with pytest.raises(SourceCut):
        client.mirror(resolved(source), source, REFERENCE)
    (chunks,) = marked_chunks(client, resolved(source))
    client.shelf.objects.put(keys.blob(chunks[0]), b"?" * CHUNK)
    source.cut_after, source.asked = None, []

    listing = make().mirror(resolved(source), source, REFERENCE)

    assert ("model.safetensors", 0) in source.asked
    assert contents(make(), listing.id) == FILES
    assert_sound(make())


def test_bytes_that_upstream_did_not_announce_are_never_seen_as_the_file(make: Make) -> None:
    """A wrong digest is an error that names the file; no listing, no record of the content and no mark is left."""
    source = MemorySource(FILES)
    announced = resolved(source)
    source.files = {**FILES, "model.safetensors": FILES["model.safetensors"][:-1] + b"?"}

    with pytest.raises(SourceWrong, match=r"model\.safetensors"):
        make().mirror(announced, source, REFERENCE)

    digest = next(one.sha256 for one in announced.files if one.path == "model.safetensors")
    assert make().shelf.content(str(digest), len(FILES["model.safetensors"])) is None
    assert names(make(), keys.LISTINGS, keys.FINGERPRINTS, keys.CHUNKED) == []
    assert [
        one
        for one in names(make(), keys.PARTIAL)
        if f"/{keys.PACK}." not in one and "whole" not in one
    ] == []
    assert_sound(make())


def test_two_at_once_do_the_work_once(make: Make) -> None:
    """Two clients that begin together ask upstream once for each file, where the store takes conditions; else they may both, harmlessly."""
    sources = [MemorySource(FILES, announce=False) for _ in range(2)]
    listings: list[str] = []

    def work(source: MemorySource, reference: Reference) -> None:
        listings.append(make().mirror(resolved(source), source, reference).id)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(sources, (REFERENCE, OTHER), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    asked = [path for source in sources for path, _ in source.asked]
    conditional = "models/team" in make().url and _takes_conditions(make())
    assert len(set(listings)) == 1
    assert len(listings) == 2
    assert len(asked) == (4 if conditional else len(asked))
    assert contents(make(), listings[0]) == FILES
    # Without conditions a lease may be renewed after it was given back; it lapses.
    assert names(make(), *([keys.LEASES] if conditional else []), keys.PARTIAL) == []


def _takes_conditions(mirror: BucketMirror) -> bool:
    objects = mirror.shelf.objects
    return objects.put_if_absent("probe", b"1") and not objects.put_if_absent("probe", b"2")


def test_a_lease_of_a_dead_process_is_taken_over_at_once(make: Make) -> None:
    """A process of this machine that is no more is not waited for."""
    source, client = MemorySource(FILES), make()
    boot = holder_name().partition("-")[0]
    dead: dict[str, str | int] = {"holder": f"{boot}-99999999-1", "beat": 7}
    client.shelf.objects.put(keys.lease(resolved(source)), canonical(dead))

    listing = client.mirror(resolved(source), source, REFERENCE)

    assert contents(client, listing.id) == FILES


def test_a_writer_waits_for_a_collection_before_it_looks(make: Make) -> None:
    """While one is announced nothing is taken for granted; it goes on when the announcement is gone."""
    source, client, waiting = MemorySource(FILES), make(), make()
    key = keys.collection(holder_name(), "0" * 8)
    client.shelf.objects.put(key, canonical({"holder": holder_name(), "beat": 0}))
    told, said = threading.Event(), list[str]()

    def tell(text: str) -> None:
        said.append(text)
        told.set()

    done: list[str] = []
    thread = threading.Thread(
        target=lambda: done.append(
            waiting.mirror(resolved(source), source, REFERENCE, waiting=tell).id
        )
    )
    thread.start()

    assert told.wait(60)
    assert said[0] == "waits for a collection of the mirror to end"
    assert names(client, keys.REFERENCES) != []
    assert names(client, keys.BLOBS) == []
    client.shelf.objects.delete([key])
    thread.join()
    assert contents(client, done[0]) == FILES


def test_what_nobody_refers_to_is_collected_and_nothing_else(make: Make) -> None:
    """A source that was let go leaves; content that another one needs too stays."""
    kept, going = MemorySource(FILES), MemorySource({**FILES, "gone": b"g" * (2 * CHUNK)})
    listing = make().mirror(resolved(kept), kept, REFERENCE)
    elsewhere = replace(resolved(going), source="hf://else/model")
    make().mirror(elsewhere, going, OTHER)
    await_tick(make())

    assert make().drop_reference(OTHER.lineage, OTHER.address)
    preview = make().collect(Collecting(dry_run=True))
    found = make().collect(Collecting(grace_seconds=0))

    assert preview.blobs == found.blobs == 1
    assert found.bytes == CHUNK
    assert contents(make(), listing.id) == FILES
    assert [keys.stem(one) for one in names(make(), keys.LISTINGS)] == [listing.id]
    assert make().look([elsewhere]).known[0].listing is None
    assert gc(make()) == 0


def test_a_collection_beside_a_writer_takes_nothing(make: Make) -> None:
    """While somebody mirrors, however far they are, no content goes, not even what nobody refers to."""
    source, client = MemorySource(FILES), make()
    found: list[int] = []
    begun = threading.Lock()
    first = MemorySource({"old": b"o" * CHUNK})
    client.mirror(resolved(first), first, OTHER)
    client.drop_reference(OTHER.lineage, OTHER.address)
    await_tick(client)

    def collect(what: str, key: str) -> None:
        if key.startswith(keys.BLOBS) and begun.acquire(blocking=False):
            found.append(gc(make()))

    counted(client).before = collect
    client.mirror(resolved(source), source, REFERENCE)

    assert found == [0]
    assert names(client, keys.COLLECTIONS) == []


def test_references_that_nobody_renews_are_dropped_by_the_buckets_clock(make: Make) -> None:
    """What was not renewed for so long goes; one that was renewed just now stays. This machine's clock has no say."""
    source = MemorySource(FILES)
    elsewhere = replace(resolved(source), source="hf://else/model")
    make().mirror(resolved(source), source, REFERENCE)
    make().mirror(elsewhere, source, OTHER)
    await_tick(make())
    make().renew(REFERENCE.lineage, REFERENCE.address)
    await_tick(make())
    make().shelf.objects.put("tick", b"")

    found = make().collect(Collecting(grace_seconds=0, unused_seconds=86400))

    assert found.dropped == ()
    assert len(found.kept) == 2


def test_a_flipped_byte_is_found_and_only_its_chunk_fetched_again(make: Make) -> None:
    """Verifying names it; repairing reads upstream from that chunk on, and the bucket is as it was."""
    source = MemorySource(FILES, piece=512)
    listing = make().mirror(resolved(source), source, REFERENCE)
    file = next(one for one in listing.files if one.path == "model.safetensors")
    key = keys.blob(file.chunks[2])
    make().shelf.objects.put(key, b"\0" * CHUNK)
    origin = Origin(source, resolved(source), None, make().retry)
    source.asked = []

    found = make().verify(None)
    repaired = make().verify(lambda record, halt: origin)

    assert [(one.what, one.outcome, one.path.name) for one in found.findings] == [
        ("changed", Outcome.WRONG, file.chunks[2])
    ]
    assert [one.outcome for one in repaired.findings] == [Outcome.REPAIRED]
    assert source.asked == [("model.safetensors", 2 * CHUNK)]
    assert make().verify(None).findings == ()
    assert contents(make(), listing.id) == FILES


def test_what_cannot_be_had_again_goes_with_its_listing(make: Make) -> None:
    """A missing object whose source is gone takes the listing along, so that the next plan sees it missing."""
    source = MemorySource(FILES)
    listing = make().mirror(resolved(source), source, REFERENCE)
    file = next(one for one in listing.files if one.path == "one")
    make().shelf.objects.delete([keys.blob(file.sha256)])

    def gone(record: object, halt: threading.Event) -> Origin:
        raise SourceGone("it is no more")

    (finding,) = make().verify(gone).findings

    assert (finding.what, finding.outcome) == ("missing", Outcome.REMOVED)
    assert make().look([resolved(source)], [listing.id]).listings == frozenset()
    assert make().look([resolved(source)]).known[0].listing is None
    assert_sound(make())


def test_a_bucket_that_is_not_there_is_one_line(moto_bucket: Bucket) -> None:
    """The error names the mirror and says what to check."""
    nowhere = replace(moto_bucket, name="no-such-bucket")

    with pytest.raises(StorageError, match="s3://no-such-bucket/x"):
        mirror_in(nowhere, "x").mirror(
            resolved(MemorySource(FILES)), MemorySource(FILES), REFERENCE
        )


def test_a_server_that_does_not_answer_is_one_line(moto_bucket: Bucket) -> None:
    """The error names the mirror and the server, and none of the mirror's own objects."""
    away = replace(moto_bucket, endpoint="http://127.0.0.1:1")

    with pytest.raises(StorageError) as caught:
        mirror_in(away, "x").look([resolved(MemorySource(FILES))])

    assert caught.value.summary == "mirror s3://models/x: can't reach 127.0.0.1:1"


def test_a_large_file_is_never_in_memory_for_more_than_some_chunks(make: Make) -> None:
    """What was read from upstream and isn't put yet is at most 3 chunks, and one on its way between the two."""
    source, client = MemorySource({"big": noise(64 * CHUNK)}, piece=CHUNK), make()
    read, begun, most = threading.Semaphore(0), threading.Lock(), []
    counts = {"read": 0, "put": 0}
    pieces = source._pieces

    def counted_pieces(data: bytes, offset: int) -> Iterator[bytes]:
        for piece in pieces(data, offset):
            counts["read"] += 1
            read.release()
            yield piece

    def before(what: str, key: str) -> None:
        if key.startswith(keys.BLOBS) and begun.acquire(blocking=False):
            for _ in range(3):  # upstream is quicker than the bucket
                assert read.acquire(timeout=60)
        if key.startswith(keys.PARTIAL):  # the mark of a chunk that was put just now
            most.append(counts["read"] - counts["put"])
            counts["put"] += 1

    source._pieces = counted_pieces  # type: ignore[method-assign]
    counted(client).before = before
    client.mirror(resolved(source), source, REFERENCE)

    assert max(most) <= 5
    assert client.look([resolved(source)]).known[0].listing


def test_more_large_files_than_there_is_room_for_come_at_once(make: Make) -> None:
    """Pieces that reach into two chunks, or over three: no file waits for room that another holds for ever."""
    files = {f"{number}": noise(5 * CHUNK + number, number) for number in range(12)}
    source, mirror = MemorySource(files, piece=2 * CHUNK + 7), make()

    listing = mirror.mirror(resolved(source), source, REFERENCE)

    assert contents(mirror, listing.id) == files
