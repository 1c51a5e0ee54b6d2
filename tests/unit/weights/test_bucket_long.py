"""What a mirror in a bucket keeps on the disk of this machine, as there may be millions, and objects that may be long."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Counted, Directory
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from trainctl.base.json import canonical
from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile, in_order
from trainctl.weights.bucket import keys, long, spread
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.disk_set import DiskSet
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.repair import turned_out
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror import fetch
from trainctl.weights.mirror.afresh import Afresh, Origin, Refusal, read_again
from trainctl.weights.mirror.layout import fingerprint


def name(number: int) -> str:
    """A digest."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_texts_are_found_by_digest() -> None:
    """More than are asked for at once; the last of two texts of a digest counts; in order."""
    texts = {name(number): str(number) for number in range(1200)}
    made = DiskMap()
    made.update((digest, "old") for digest in texts)
    made.update(texts.items())

    assert made.find([*texts, name(-1)]) == texts
    assert len(made) == 1200
    assert name(3) in made
    assert name(-1) not in made
    assert list(made) == sorted(texts.items())


def test_a_record_is_written_as_ever_and_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its form is what it was, but for its check: its listing is found at its end, and no pair is lost where a piece ends."""
    monkeypatch.setattr(long, "_READ_BYTES", 1000)
    for count in (0, 1, 300):
        turned = sorted((name(number), name(-number - 1)) for number in range(count))
        source = ResolvedSource('https://x/"files":{},"listing":"y', "1", ())
        path = tmp_path / "record"

        path.write_bytes(b"".join(long.record(source, name(0), turned)))

        text, _, check = path.read_bytes().rpartition(b',"check":')
        assert text + b"}" == canonical(
            {
                "version": 1,
                "source": source.source,
                "pin": source.pin,
                "listing": name(0),
                "files": dict(turned),
            }
        )
        assert json.loads(check[:-1]) == hashlib.sha256(text).hexdigest()
        assert long.is_right(path)
        assert long.listing_in(path) == name(0)
        with path.open("rb") as stream:
            assert list(long.fingerprints_in(stream)) == turned
    path.write_bytes(b"[]")
    assert long.listing_in(path) is None


def test_many_files_are_brought_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes of that is what would have come at once; a second version takes over what is there."""
    files = {f"{number:03}": b"%d" % (number % 50) for number in range(120)}
    source = MemorySource(files, announce=False)
    resolved = source.resolve("hf://a/b", None, None)

    def mirrored(folder: Path) -> tuple[BucketMirror, str]:
        mirror = BucketMirror(Shelf(Directory(folder)), impatient())
        return mirror, mirror.mirror(resolved, source, REFERENCE).id

    _, expected = mirrored(tmp_path / "once")
    monkeypatch.setattr(fetch, "AT_ONCE", 50)
    mirror, found = mirrored(tmp_path / "parts")
    source.files["new"] = b"new"
    source.asked = []
    newer = replace(source.resolve("hf://a/b", None, None), revision="2")

    listing = BucketMirror(mirror.shelf, impatient()).mirror(newer, source, REFERENCE)

    assert found == expected
    assert [path for path, _ in source.asked] == ["new"]
    assert len(listing.files) == 121
    known = mirror.look([newer]).known[0]
    assert (known.listing, {here for _, _, here in known.files}) == (listing.id, {True})
    assert not list(mirror.shelf.objects.list(keys.PARTIAL))


def test_looking_for_many_does_not_take_memory(tmp_path: Path) -> None:
    """What another version of a source turned out to be isn't held, however many files it has."""

    def peak(count: int) -> int:
        objects = Directory(tmp_path / str(count))
        files = tuple(SourceFile(f"{number:06}", 1, f"git:{number}") for number in range(100))
        old = ResolvedSource("hf://a/b", "1", files)
        turned = ((name(number), name(-number)) for number in range(count))
        listing = b'{"chunk_bytes":16777216,"files":[],"version":1}'
        listing_id = hashlib.sha256(listing).hexdigest()
        objects.put(keys.listing(listing_id), listing)
        long.put(objects, keys.record(old), long.record(old, listing_id, turned))
        tracemalloc.start()
        earlier = Shelf(objects).turned_out(replace(old, revision="2"))
        assert len(earlier.contents) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(30_000) < 1.25 * peak(15_000)


def test_repairing_one_of_many_does_not_take_memory(tmp_path: Path) -> None:
    """What a source's files turned out to be is looked through, and only the one that is wanted is remembered."""

    def peak(count: int) -> int:
        objects = Directory(tmp_path / str(count))
        source = MemorySource({f"{number:06}": b"%d" % number for number in range(count)})
        files = in_order(
            SourceFile(path, len(data), f"git:{path}") for path, data in source.files.items()
        )
        resolved = ResolvedSource("hf://a/b", "1", files)
        wanted = hashlib.sha256(b"77").hexdigest()
        turned = ((fingerprint(resolved, one), name(int(one.path))) for one in files)
        long.put(objects, keys.record(resolved), long.record(resolved, name(0), turned))
        origin = Origin(source, resolved, None, impatient())
        tracemalloc.start()
        recorded = partial(turned_out, Shelf(objects), frozenset({wanted}))
        afresh = Afresh(
            lambda record, halt: origin, frozenset({wanted}), recorded, threading.Event()
        )
        got = []

        def ask(file: ListedFile) -> Refusal | None:
            def act(origin: Origin, same: SourceFile, use: None) -> None:
                got.append(read_again(origin, same, 1, 1, name(7), threading.Event()))

            return afresh.ask([({}, file, None)], act)

        assert ask(ListedFile("old", 2, wanted)) is None
        assert got == [b"7"]
        for other in (ListedFile("old", 3, wanted), ListedFile("else", 2, name(-1))):
            refused = ask(other)
            assert refused is not None
            assert refused.is_gone
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(30_000) < 1.25 * peak(15_000)


def test_what_is_fetched_replaces_what_was_in_the_file(tmp_path: Path) -> None:
    """A fetch that is tried again begins anew."""
    objects = Directory(tmp_path)
    objects.put("a", b"short")
    into = io.BytesIO(b"something longer")

    assert objects.fetch("a", into)
    assert into.getvalue() == b"short"
    assert not objects.fetch("b", into)


def test_a_set_on_the_disk_has_what_was_put_into_it() -> None:
    """However often, across its blocks, and where contents begin alike; nothing else, and nothing of another length."""
    alike = [bytes([7] * 8 + [one] + [0] * 23) for one in range(0, 200, 2)]
    digests = [hashlib.sha256(b"%d" % one).digest() for one in range(1000)]

    made = DiskSet([*digests, *alike, *digests[:300], b"short"])

    assert list(made) == sorted({*digests, *alike})
    assert all(one in made for one in (*digests, *alike))
    others = [bytes([7] * 8 + [one] + [0] * 23) for one in range(1, 200, 2)]
    others += [hashlib.sha256(b"%d" % one).digest() for one in range(1000, 2000)]
    others += [digests[0][1:] + digests[1][:1], b"short", b"", bytes(32), b"\xff" * 32]
    assert not any(one in made for one in others)
    assert digests[0] not in DiskSet()


def test_many_objects_are_listed_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they would be one after another, and in that order; few of them by one request."""
    monkeypatch.setattr(spread, "_PAGE", 10)
    objects = Counted(Directory(tmp_path))
    for number in range(1500):
        objects.put(keys.blob(name(number)), b"")
        if number % 50 == 0:
            objects.put(keys.slices(name(number)), b"")
    objects.asked.clear()

    many, few = (list(spread.spread(objects, kind)) for kind in (keys.BLOBS, keys.SLICES))

    assert many == list(objects.objects.list(keys.BLOBS))
    assert few == list(objects.objects.list(keys.SLICES))
    assert (len(many), len(few)) == (1500, 30)
    assert objects.asked["list"] == 1 + 256 + 1


def test_verifying_objects_does_not_take_memory_for_all_of_one(tmp_path: Path) -> None:
    """They are hashed as they come, unless they are packs; one that is wrong is found."""
    size = 2**21
    objects = Directory(tmp_path)
    for number in range(12):
        data = bytes([number]) * size
        objects.put(keys.blob(hashlib.sha256(data).hexdigest()), data)
    objects.put(keys.blob(name(0)), data)
    del data
    mirror = BucketMirror(Shelf(objects), impatient())
    tracemalloc.start()

    found = mirror.verify(None)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [str(one.path) for one in found.findings] == [keys.blob(name(0))]
    assert (found.blobs, found.bytes) == (13, 13 * size)
    assert peak < size
