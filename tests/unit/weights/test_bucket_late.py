"""Who was asleep while others may have thought it dead: a collection deletes no more, a writer looks again at what it brought."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import CHUNK, Counted, Directory, contents, counted, names
from tests.support.mirrors import REFERENCE, SECONDS, MemorySource, impatient
from tests.support.weights_data import noise
from trainctl.base.clock import SystemClock
from trainctl.base.exclusive import holder_name
from trainctl.errors import StorageError
from trainctl.weights.bucket import beating, keys
from trainctl.weights.bucket.beating import LATE_SECONDS, Beating
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.others import Waiting, nobody

FILES = {"large": noise(3 * CHUNK + 5), "small": b"small", "other": b"other"}
Sleep = Callable[[], None]


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    """Lets the machine's clock go on, at once, by more than anybody may be late."""
    slept, elapsed = [0.0], SystemClock.elapsed
    monkeypatch.setattr(SystemClock, "elapsed", lambda self: elapsed(self) + sum(slept))
    return lambda: slept.append(LATE_SECONDS + 1)


@pytest.fixture
def mirror(tmp_path: Path) -> BucketMirror:
    return BucketMirror(Shelf(Counted(Directory(tmp_path)), CHUNK), impatient())


def fill(mirror: BucketMirror, waiting: Waiting = nobody) -> str:
    """Mirror the source; its listing's id."""
    source = MemorySource(FILES)
    resolved = source.resolve("hf://acme/model", None, None)
    return mirror.mirror(resolved, source, REFERENCE, waiting=waiting).id


def once(mirror: BucketMirror, what: str, beginning: str, act: Callable[[str], object]) -> None:
    """Do something right before the first request of that kind, for a key that begins so."""
    left = [act]

    def before(done: str, key: str) -> None:
        if left and done == what and key.startswith(beginning):
            left.pop()(key)

    counted(mirror).before = before


def test_who_was_late_once_is_late_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleep: Sleep
) -> None:
    """Whoever took it for dead meanwhile may be deleting still, however soon the next beats come."""
    monkeypatch.setattr(beating, "BEAT_SECONDS", 0.01)
    beats = threading.Semaphore(0)
    objects = Counted(Directory(tmp_path), before=lambda what, key: beats.release())
    with Beating(objects, keys.collection(holder_name(), "0" * 8), {}) as one:
        for _ in range(3):
            assert beats.acquire(timeout=SECONDS)
        in_time = not one.late
        sleep()
        for _ in range(4):
            assert beats.acquire(timeout=SECONDS)

        assert in_time
        assert one.late


def test_whose_announcement_somebody_took_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody thought that it is dead; it doesn't put it again, which others wouldn't expect."""
    monkeypatch.setattr(beating, "BEAT_SECONDS", 0.01)
    objects, key = Directory(tmp_path), keys.collection(holder_name(), "0" * 8)
    with Beating(objects, key, {}) as one:
        while one._thread.is_alive():  # a beat that is under way puts it once more
            objects.delete([key])

        assert one.late
        assert objects.get(key) is None


@pytest.mark.parametrize("kind", [keys.LISTINGS, keys.SLICES, keys.BLOBS])
def test_a_collection_that_was_asleep_deletes_no_more(
    mirror: BucketMirror, sleep: Sleep, kind: str
) -> None:
    """Whenever that was, what was to go from then on stays, and it says so; its announcement goes. The next one does the rest."""
    fill(mirror)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    there = names(mirror, kind)
    once(mirror, "delete", kind, lambda key: sleep())

    with pytest.raises(StorageError, match="cut off for too long"):
        mirror.collect(Collecting(grace_seconds=0))

    assert names(mirror, kind) == there != []
    assert names(mirror, keys.COLLECTIONS) == []
    mirror.collect(Collecting(grace_seconds=0))
    assert names(mirror, kind) == []


def test_a_collection_that_was_asleep_in_its_grace_period_deletes_nothing(
    mirror: BucketMirror, sleep: Sleep
) -> None:
    """What it had found out is of a time when others knew that it lives."""
    fill(mirror)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    there = names(mirror)

    with pytest.raises(StorageError, match="cut off for too long"):
        mirror.collect(Collecting(grace_seconds=1, wait=lambda seconds: sleep()))

    assert names(mirror) == there != []


@pytest.mark.parametrize("kind", [keys.BLOBS, keys.SLICES])
def test_a_writer_that_was_asleep_takes_back_what_lost_content(
    mirror: BucketMirror, sleep: Sleep, kind: str
) -> None:
    """A collection that took it for dead has been there: nobody is told that the source is whole, and the next apply makes it so."""

    def collected(key: str) -> None:
        sleep()
        mirror.shelf.objects.delete(names(mirror, kind)[:1])

    once(mirror, "put", keys.LISTINGS, collected)

    with pytest.raises(StorageError, match="lost content"):
        fill(mirror)

    assert names(mirror, keys.LISTINGS, keys.FINGERPRINTS) == []
    assert contents(mirror, fill(mirror)) == FILES


class UnderWay:
    """A collection that was announced while the machine slept, right before a put. It deletes what it is to, and ends, when somebody says that it waits for it."""

    def __init__(self, mirror: BucketMirror, sleep: Sleep, put: str, *going: str) -> None:
        self._objects = mirror.shelf.objects
        self._mirror, self._going, self._sleep = mirror, going, sleep
        self._key = keys.collection(holder_name(), "0" * 8)
        self.heard: list[str] = []
        once(mirror, "put", put, self._begin)

    def _begin(self, key: str) -> None:
        self._sleep()
        self._objects.put(self._key, checked({"holder": holder_name(), "beat": 0}))

    def end(self, text: str) -> None:
        """See Waiting."""
        self.heard.append(text)
        self._objects.delete([*names(self._mirror, *self._going), self._key])


def test_a_writer_that_was_asleep_looks_when_nobody_deletes_any_more(
    mirror: BucketMirror, sleep: Sleep
) -> None:
    """What a collection under way has found that nobody needs may be there still, and go when the writer has looked."""
    collection = UnderWay(mirror, sleep, keys.LISTINGS, keys.BLOBS)

    with pytest.raises(StorageError, match="lost content"):
        fill(mirror, collection.end)


def test_what_is_whole_is_looked_for_again_by_a_writer_that_was_asleep(
    mirror: BucketMirror, sleep: Sleep
) -> None:
    """The same, where all of the source was there before the collection took it."""
    fill(mirror)
    content = (keys.LISTINGS, keys.CHUNKED, keys.SLICES, keys.BLOBS)
    collection = UnderWay(mirror, sleep, keys.LEASES, *content)

    assert contents(mirror, fill(mirror, collection.end)) == FILES
    assert collection.heard == ["waits for a collection of the mirror to end"]


def test_a_writer_that_was_asleep_and_lost_nothing_goes_on(
    mirror: BucketMirror, sleep: Sleep
) -> None:
    """It has looked, and all is there."""
    once(mirror, "put", keys.LISTINGS, lambda key: sleep())

    assert contents(mirror, fill(mirror)) == FILES
