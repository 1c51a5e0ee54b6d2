"""A mirror in a bucket that has lost many small files: how they are fetched again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Counted, Directory, contents, names
from tests.support.mirrors import REFERENCE, TOGETHER, Crowded, MemorySource, impatient
from trainctl.base.listing import Listing
from trainctl.base.retry import Retry
from trainctl.errors import SourceBusy, SourceCut, SourceDenied, SourceUnreachable, StorageError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.fetch import SMALL_AT_ONCE
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.verify import Outcome

FILES = {f"{number:03}": b"%d" % number for number in range(100)}
CHUNK = 1000
_SECONDS = 30.0


def mirrored(place: Path) -> tuple[BucketMirror, Listing]:
    """A mirror of the files, which are in one pack."""
    mirror = BucketMirror(Shelf(Directory(place)), impatient())
    source = MemorySource(FILES)
    return mirror, mirror.mirror(source.resolve("hf://a/b", None, None), source, REFERENCE)


def upstream(source: MemorySource, retry: Retry) -> Callable[[object, threading.Event], Origin]:
    found = source.resolve("hf://a/b", None, None)
    return lambda record, halt: Origin(source, found, None, retry)


def lost(mirror: BucketMirror, pack: str) -> None:
    """It is gone."""
    mirror.shelf.objects.delete([keys.blob(pack)])


def changed(mirror: BucketMirror, pack: str) -> None:
    """Every byte of it is wrong."""
    data = mirror.shelf.objects.get(keys.blob(pack)) or b""
    mirror.shelf.objects.put(keys.blob(pack), bytes(len(data)))


@pytest.mark.parametrize("harm", [lost, changed])
def test_small_files_are_fetched_again_as_many_at_once_as_they_are_mirrored(
    tmp_path: Path, harm: Callable[[BucketMirror, str], None]
) -> None:
    """Each of them once, and all are right then."""
    mirror, listing = mirrored(tmp_path)
    (slices,) = names(mirror, keys.SLICES)
    harm(mirror, keys.stem(slices))
    source = Crowded(FILES)

    found = mirror.verify(upstream(source, mirror.retry))

    mended = [one for one in found.findings if one.outcome is Outcome.REPAIRED]
    assert len(mended) == len(FILES)
    assert sorted(path for path, _ in source.asked) == sorted(FILES)
    assert TOGETHER <= source.most <= SMALL_AT_ONCE
    assert contents(mirror, listing.id) == FILES
    assert mirror.verify(None).findings == ()


def test_what_broke_off_is_not_taken_for_what_is_gone(tmp_path: Path) -> None:
    """Where the bucket refuses while another file is waited for, the repair ends, and no listing goes for that file's sake."""
    mirror, _ = mirrored(tmp_path)
    (slices,) = names(mirror, keys.SLICES)
    lost(mirror, keys.stem(slices))
    second = sorted(FILES.values(), key=lambda data: hashlib.sha256(data).hexdigest())[1]
    waiting = threading.Event()

    def wait(halt: threading.Event, seconds: float) -> None:
        waiting.set()
        assert halt.wait(_SECONDS), "nobody ends the patience"

    def refuse(what: str, key: str) -> None:
        if what == "put":
            assert waiting.wait(_SECONDS)
            raise StorageError("no more room")

    class Busy(MemorySource):
        def _pieces(self, data: bytes, offset: int) -> Iterator[bytes]:
            if data == second:
                raise SourceBusy("come again")
            return super()._pieces(data, offset)

    refusing = replace(mirror, shelf=Shelf(Counted(mirror.shelf.objects, before=refuse)))
    with pytest.raises(StorageError, match="no more room"):
        refusing.verify(upstream(Busy(FILES), replace(impatient(), wait=wait)))

    assert len(names(mirror, keys.LISTINGS)) == 1


@pytest.mark.parametrize("harm", [lost, changed])
def test_a_source_that_can_not_be_asked_takes_nothing_away(
    tmp_path: Path, harm: Callable[[BucketMirror, str], None]
) -> None:
    """Of a pack nor of anything that needs it: a repair that can ask finds everything."""
    mirror, listing = mirrored(tmp_path)
    (slices,) = names(mirror, keys.SLICES)
    harm(mirror, keys.stem(slices))
    before = {*names(mirror, keys.BLOBS), *names(mirror, keys.LISTINGS)}

    def away(record: object, halt: threading.Event) -> Origin:
        raise SourceDenied("403")

    told = mirror.verify(away)
    after = {*names(mirror, keys.BLOBS), *names(mirror, keys.LISTINGS)}
    mended = mirror.verify(upstream(MemorySource(FILES), mirror.retry))

    assert {one.outcome for one in told.findings if str(one.path) != slices} == {Outcome.WRONG}
    assert after == before
    assert Outcome.REMOVED not in {one.outcome for one in mended.findings}
    assert contents(mirror, listing.id) == FILES


def test_one_slice_that_can_not_be_asked_for_keeps_its_pack(tmp_path: Path) -> None:
    """Upstream has not got one of them any more, and broke off at another: nothing goes before all were asked for."""
    mirror, listing = mirrored(tmp_path)
    (slices,) = names(mirror, keys.SLICES)
    changed(mirror, keys.stem(slices))

    class Cut(MemorySource):
        def _pieces(self, data: bytes, offset: int) -> Iterator[bytes]:
            if data == FILES["007"]:
                raise SourceCut("it broke off")
            return super()._pieces(bytes(len(data)) if data == FILES["003"] else data, offset)

    told = mirror.verify(upstream(Cut(FILES), mirror.retry))

    assert {one.outcome for one in told.findings} == {Outcome.WRONG}
    assert names(mirror, keys.SLICES) == [slices]
    assert mirror.load_listing(listing.id) == listing


def test_a_chunk_that_can_not_be_asked_for_stays(tmp_path: Path) -> None:
    """And its listing; where it is missing, too."""
    mirror = BucketMirror(Shelf(Directory(tmp_path), CHUNK), impatient())
    source = MemorySource({"large": bytes(range(250)) * 4 + bytes(2 * CHUNK) + b"end"})
    resolved = source.resolve("hf://a/b", None, None)
    listing = mirror.mirror(resolved, source, REFERENCE)
    first, second, *_ = listing.files[0].chunks
    mirror.shelf.objects.put(keys.blob(first), b"other")
    mirror.shelf.objects.delete([keys.blob(second)])

    def away(record: object, halt: threading.Event) -> Origin:
        raise SourceUnreachable("nobody answers")

    told = mirror.verify(away)
    mended = mirror.verify(lambda record, halt: Origin(source, resolved, None, mirror.retry))

    assert [(one.what, one.outcome, one.detail) for one in told.findings] == [
        ("changed", Outcome.WRONG, "nobody answers"),
        ("missing", Outcome.WRONG, "nobody answers"),
    ]
    assert [one.outcome for one in mended.findings] == [Outcome.REPAIRED] * 2
    assert contents(mirror, listing.id) == source.files


def test_who_can_not_be_asked_is_not_asked_for_each_name(tmp_path: Path) -> None:
    """However many files have the same content, it is one question to their source."""
    mirror = BucketMirror(Shelf(Directory(tmp_path)), impatient())
    source = MemorySource({f"{number}.json": b"{}" for number in range(5)})
    resolved = source.resolve("hf://a/b", None, None)
    mirror.mirror(resolved, source, REFERENCE)
    mirror.shelf.objects.delete(names(mirror, keys.BLOBS))
    source.asked.clear()
    source.cut_after, source.error = 0, SourceUnreachable("nobody answers")

    mirror.verify(lambda record, halt: Origin(source, resolved, None, mirror.retry))

    assert len(source.asked) == mirror.retry.unanswered


def test_what_is_under_way_hears_that_nobody_waits_for_it(tmp_path: Path) -> None:
    """One error ends all of it; the others are told before they are waited for."""
    halt = threading.Event()
    heard: list[bool] = []

    def act(number: int) -> None:
        if number == 0:
            raise StorageError("broken")
        heard.append(halt.wait(_SECONDS))

    with pytest.raises(StorageError):
        list(in_turn(act, range(4), 4, halt))
    assert heard == [True] * 3
