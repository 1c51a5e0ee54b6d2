"""What others have put where a bucket's mirror puts its own: it is neither read nor counted, nobody waits for it, and it never goes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from tests.support.bucket_mirrors import (
    Counted,
    Directory,
    await_tick,
    contents,
    gc,
    mirror_in,
    names,
)
from tests.support.buckets import Bucket, moto
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from tests.support.weights_data import noise
from trainctl.base.exclusive import holder_name
from trainctl.base.json import canonical
from trainctl.errors import Busy, SourceCut, SourceError, StorageError
from trainctl.objects.place import place_of
from trainctl.weights.bucket import beating, collect, keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.objects import Objects
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.stored import Stored
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.needs import Watch
from trainctl.weights.mirror.verify import Outcome

pytestmark = pytest.mark.integration

CHUNK = 4096
OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")
FILES = {"large": noise(3 * CHUNK - 7), "a": b"first", "b": b"second"}
MORE = {"c": noise(CHUNK // 2, 3)}
HEX = "ab" + "0" * 62
STRANGE = (
    "blobs/sha256/ab/notes.txt",
    f"blobs/sha256/cd/{HEX}",
    f"blobs/sha256/ab/{HEX}.bak",
    f"chunked/sha256/ab/{HEX}",
    f"collections/elsewhere-1-0.{HEX}.txt",
    "collections/meeting.json",
    "fingerprints/people.csv",
    f"fingerprints/{HEX}/people.json",
    "leases/rent.pdf",
    f"leases/{HEX.upper()}.json",
    "listings/products.json",
    f"packs/more/{HEX}.json",
    "packs/mine.tar",
    f"partial/{HEX}/thesis.doc",
    f"partial/{HEX}/{HEX}.one.{HEX}",
    "references/papers/turing.json",
    "slices/ab/bread",
)
ELSEWHERE = ("blobs/important.bin", "other/x", "packs-of-wolves/1", "thesis.doc")


class Aside:
    """A mirror in a directory that stands for a bucket."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @property
    def mirror(self) -> BucketMirror:
        """As a new process has it."""
        return BucketMirror(Shelf(self.objects, CHUNK), impatient())

    def bring(self, files: dict[str, bytes] = FILES, reference: Reference = REFERENCE) -> str:
        """Mirror a source of these files; its listing."""
        source = MemorySource(dict(files))
        uri = f"hf://acme/{reference.project}"
        return self.mirror.mirror(source.resolve(uri, None, None), source, reference).id


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with moto() as one:
        yield one


@pytest.fixture(params=["directory", "s3"])
def aside(request: pytest.FixtureRequest, tmp_path: Path) -> Aside:
    """What tests have in place of a bucket, and a bucket."""
    if request.param == "directory":
        return Aside(Directory(tmp_path))
    one: Bucket = request.getfixturevalue("bucket")
    return Aside(mirror_in(one, request.node.name.replace("[", "-").strip("]")).shelf.objects)


def strew(objects: Objects) -> None:
    """Have them lie there, as somebody who has the same bucket puts them."""
    for key in (*STRANGE, *ELSEWHERE):
        objects.put(key, f"mine: {key}".encode())


def unharmed(objects: Objects) -> list[str]:
    """Those that are as they were put."""
    return [key for key in (*STRANGE, *ELSEWHERE) if objects.get(key) == f"mine: {key}".encode()]


@pytest.mark.parametrize("name", ["here", "elsewhere"])
def test_all_that_a_mirror_puts_is_known_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of every kind, whatever states and weights are called, and also by a process that has no /proc."""
    if name == "elsewhere":
        for module in (beating, collect):
            monkeypatch.setattr(module, "holder_name", lambda: f"elsewhere{'0f' * 8}-17-0")
    put: set[str] = set()
    objects = Counted(Directory(tmp_path), before=lambda _, key: put.add(key))
    aside = Aside(objects)
    aside.bring()
    for lineage, address in (("ä/" * 200, "weights.x"), ("-", 'weights.y["a.b"]')):
        aside.bring(MORE, Reference(lineage, address, "bob@desk", "other"))
    broken = MemorySource(
        {"large": noise(3 * CHUNK, 9)}, piece=1024, cut_after=6, error=SourceCut("gone")
    )
    source = broken.resolve("hf://acme/broken", None, None)
    with pytest.raises(SourceCut):
        replace(aside.mirror, retry=impatient(attempts=1)).mirror(source, broken, OTHER)
    aside.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    await_tick(aside.mirror)
    aside.mirror.collect(Collecting(grace_seconds=0))

    kinds = {key.partition("/")[0] for key in put}

    assert kinds - {"tick"} == {kind.partition("/")[0] for kind in keys.KINDS}
    assert [key for key in put if not keys.is_ours(key)] == ["tick"]


def test_a_collection_takes_and_counts_what_is_the_mirrors_alone(aside: Aside) -> None:
    """A preview, a list and the collection say the same as without it, and all of it is there after."""
    kept = aside.bring()
    aside.bring({**FILES, **MORE}, OTHER)
    aside.mirror.drop_reference(OTHER.lineage, OTHER.address)
    strew(aside.objects)
    await_tick(aside.mirror)

    listed = aside.mirror.inventory()
    told = aside.mirror.collect(Collecting(dry_run=True))
    stored = aside.mirror.stored_bytes()
    found = aside.mirror.collect(Collecting(grace_seconds=0))

    assert (told.bytes, told.blobs) == (found.bytes, found.blobs) == (CHUNK // 2, 1)
    assert (listed.unreferenced, listed.damaged) == (CHUNK // 2, ())
    assert aside.mirror.stored_bytes() == stored - CHUNK // 2
    assert unharmed(aside.objects) == [*STRANGE, *ELSEWHERE]
    assert contents(aside.mirror, kept) == FILES


def test_all_that_is_the_mirrors_goes_and_nothing_else(aside: Aside) -> None:
    """With the last reference gone nothing is left but what others have put; a killed transfer's beginnings go, too."""
    aside.bring()
    marked = MemorySource(dict(FILES)).resolve("hf://acme/else", None, None)
    for key in (
        keys.mark(marked, HEX, "0", HEX), keys.mark(marked, HEX, "whole", HEX), keys.pack_mark(marked, HEX), keys.lease(marked),
    ):  # fmt: skip
        aside.objects.put(key, b"")
    strew(aside.objects)
    aside.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    await_tick(aside.mirror)

    gc(aside.mirror)

    assert names(aside.mirror) == []
    assert unharmed(aside.objects) == [*STRANGE, *ELSEWHERE]


def test_a_verification_tells_once_what_is_not_the_mirrors(aside: Aside) -> None:
    """It is no fault of the mirror's: all is right. Neither it nor a repair reads it as anything of the mirror's."""
    aside.bring()
    strew(aside.objects)
    aside.objects.put("packs/empty", b"")  # as directories are listed by some
    source = MemorySource(dict(FILES))
    found = source.resolve("hf://acme/demo", None, None)
    origin = Origin(source, found, None, impatient())

    for origins in (None, lambda *_: origin):
        report = aside.mirror.verify(origins)
        assert report.whole
        assert {one.outcome for one in report.findings} == {Outcome.LEFT}
        assert sorted(str(one.path) for one in report.findings) == sorted(STRANGE)
        assert all(one.bytes == len(f"mine: {one.path}") for one in report.findings)

    assert unharmed(aside.objects) == [*STRANGE, *ELSEWHERE]


NAMELESS = (
    "packs/x//y",
    "blobs/sha256/..",
    "references//x",
    "leases/./a b+c%",
    "collections/a\x01b",
)


def test_names_that_no_file_can_have_are_in_nobodys_way(bucket: Bucket) -> None:
    """What somebody has put there by such names is listed, told and left like anything else that is not the mirror's."""
    mirror = mirror_in(bucket, "nameless")
    aside = Aside(mirror.shelf.objects)
    kept = aside.bring()
    aside.bring({**FILES, **MORE}, OTHER)
    aside.mirror.drop_reference(OTHER.lineage, OTHER.address)
    client = boto3.client(
        "s3", region_name="us-east-1", endpoint_url=bucket.endpoint, **bucket.credential
    )
    for key in NAMELESS:
        client.put_object(Bucket=bucket.name, Key=f"nameless/{key}", Body=b"mine")
    await_tick(aside.mirror)

    report = aside.mirror.verify(None)
    found = aside.mirror.collect(Collecting(grace_seconds=0))

    assert {one.outcome for one in report.findings} == {Outcome.LEFT}
    assert sorted(one.detail for one in report.findings) == sorted(NAMELESS)
    assert found.blobs == 1
    assert contents(aside.mirror, kept) == FILES
    for key in NAMELESS:
        assert (
            client.get_object(Bucket=bucket.name, Key=f"nameless/{key}")["Body"].read() == b"mine"
        )


class InTheWay:
    """A bucket of Google's in which there is such a name: nobody lists it but the engine."""

    place = place_of("gs://models/mirror", None, {})

    def list(self, prefix: str, after: str) -> None:
        raise SourceError("an object's name 'mirror/packs//x' is none", "?", code="unsafe-file-name")  # fmt: skip


def test_a_name_that_can_not_be_passed_over_is_told() -> None:
    """Of whose mirror, which object it is, and what to do."""
    stored = Stored("gs://models/mirror", InTheWay, impatient())  # type: ignore[arg-type]

    with pytest.raises(StorageError, match=r"mirror gs://models/mirror: .*'mirror/packs//x'") as raised:  # fmt: skip
        list(stored.list("packs"))

    assert raised.value.detail == "Remove or rename it, or give the mirror a prefix of its own."


def test_nobody_waits_for_what_is_no_announcement(
    aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever mirrors and whoever collects goes on at once."""
    monkeypatch.setattr(beating, "COLLECTOR_STALE_SECONDS", 1e9)
    strew(aside.objects)
    said: list[str] = []
    source = MemorySource(dict(FILES))

    listing = aside.mirror.mirror(
        source.resolve("hf://acme/demo", None, None), source, REFERENCE, waiting=said.append
    )
    aside.mirror.collect(Collecting(grace_seconds=0))

    assert said == []
    assert contents(aside.mirror, listing.id) == FILES


MINE = holder_name().encode()
DEAD = MINE.replace(b"-%d-" % os.getpid(), b"-99999999-")
BEAT = checked({"holder": holder_name(), "nonce": "0" * 16, "beat": 3})
BEAT_OF_THE_DEAD = checked({"holder": DEAD.decode(), "nonce": "0" * 16, "beat": 3})
DAMAGED = {
    "no JSON": b'{"beat":3,"holder":"x" "nonce":"',
    "empty": b"",
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "not text": b"\xff\xfe",
    "nobody's": canonical({"beat": 3, "nonce": "x"}),
    "a dead one's": BEAT.replace(MINE, DEAD),
}


@pytest.mark.parametrize("kind", [keys.COLLECTIONS, keys.LEASES])
@pytest.mark.parametrize("what", DAMAGED)
def test_what_can_not_be_read_is_waited_for_and_then_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str
) -> None:
    """An announcement or a lease in which a bit has flipped may be a living one's, who puts it again soon; else it goes like that of any other who was killed."""
    aside = Aside(Directory(tmp_path))
    source = MemorySource(dict(FILES))
    found = source.resolve("hf://acme/demo", None, None)
    lease, collection = keys.lease(found), keys.collection("elsewhere0-1-0", "0" * 8)
    key = collection if kind == keys.COLLECTIONS else lease
    aside.objects.put(key, DAMAGED[what])
    clock = Clock()
    monkeypatch.setattr(beating, "SystemClock", lambda: clock)
    cancelled = Hurried(clock)

    listing = aside.mirror.mirror(found, source, REFERENCE, cancelled=cancelled)

    assert contents(aside.mirror, listing.id) == FILES
    assert aside.objects.get(key) is None
    least = 90 if kind == keys.COLLECTIONS else 30
    assert least <= clock.now < least + 5


class Clock:
    """Stands still, until somebody waits."""

    now = 0.0

    def elapsed(self) -> float:
        return self.now


class Hurried(threading.Event):
    """Whoever waits for it waits by that clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        return super().wait(0)


ANNOUNCED = keys.collection("elsewhere0-1-0", "0" * 8)
ELSEWHERES = {"holder": "elsewhere0-1-0", "nonce": "0" * 16}


class Beside:
    """A mirror of which something may go, where another collection is announced; ``then`` happens when somebody has waited for so long."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, announced: bytes) -> None:
        self.aside = Aside(Directory(root))
        self.aside.bring()
        self.aside.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
        await_tick(self.aside.mirror)
        self.aside.objects.put(ANNOUNCED, announced)
        self.clock = Clock()
        patch.setattr(beating, "Watch", lambda _, stale: Watch(self.clock.elapsed, stale))
        self.then: Callable[[], None] = lambda: None
        self.told: list[str] = []

    def collect(self) -> int:
        """The contents that went."""
        asked = Collecting(grace_seconds=0, wait=self._wait, tell=self.told.append)
        return self.aside.mirror.collect(asked).blobs

    def _wait(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now >= 60:
            self.then()


@pytest.mark.parametrize("announced", [DAMAGED["no JSON"], checked({**ELSEWHERES, "beat": 3})])
def test_a_collection_takes_one_that_shows_no_sign_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bytes
) -> None:
    """As an apply does: it may be of another machine, or nobody can tell whose it is. It says why it waits, once."""
    beside = Beside(tmp_path, monkeypatch, announced)

    assert beside.collect() > 0
    assert 90 <= beside.clock.now < 95
    assert beside.aside.objects.get(ANNOUNCED) is None
    assert beside.told == ["Waiting for a sign of life of another collection."]


def test_a_collection_of_a_dead_process_of_this_machine_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is known at once."""
    beside = Beside(tmp_path, monkeypatch, BEAT_OF_THE_DEAD)

    assert beside.collect() > 0
    assert beside.clock.now == 0


def test_a_collection_beside_a_living_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as that is known, by a new beat; two of which each waits for the other would never end. Nothing goes."""
    beside = Beside(tmp_path, monkeypatch, checked({**ELSEWHERES, "beat": 3}))
    before = names(beside.aside.mirror)
    alive = checked({**ELSEWHERES, "beat": 4})
    beside.then = lambda: beside.aside.objects.put(ANNOUNCED, alive)

    with pytest.raises(Busy, match="another collection"):
        beside.collect()

    assert beside.clock.now == 60
    assert beside.aside.objects.get(ANNOUNCED) == alive
    assert names(beside.aside.mirror) == before


def test_a_collection_beside_one_of_this_machine_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known to live."""
    beside = Beside(tmp_path, monkeypatch, BEAT)

    with pytest.raises(Busy, match="another collection"):
        beside.collect()

    assert beside.clock.now == 0


def test_a_collection_goes_on_when_the_other_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its announcement is gone."""
    beside = Beside(tmp_path, monkeypatch, checked({**ELSEWHERES, "beat": 3}))
    beside.then = lambda: beside.aside.objects.delete([ANNOUNCED])

    assert beside.collect() > 0
    assert beside.clock.now == 60


class ReadOnly(Directory):
    """Takes nothing, and forgets nothing."""

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        raise StorageError("AccessDenied")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise StorageError("AccessDenied")

    def delete(self, *_: object) -> None:
        raise StorageError("AccessDenied")


@pytest.mark.parametrize("unused_seconds", [None, 86400.0])
def test_a_preview_writes_nothing(tmp_path: Path, unused_seconds: float | None) -> None:
    """Whoever may only read learns what a collection would do, and one who does it then hears the same."""
    aside = Aside(Directory(tmp_path))
    aside.bring()
    aside.bring({**FILES, **MORE}, OTHER)
    aside.mirror.drop_reference(OTHER.lineage, OTHER.address)
    await_tick(aside.mirror)
    asked = Collecting(dry_run=True, unused_seconds=unused_seconds, grace_seconds=0)

    told = replace(aside.mirror, shelf=Shelf(ReadOnly(tmp_path), CHUNK)).collect(asked)
    done = aside.mirror.collect(replace(asked, dry_run=False))

    assert replace(told, dry_run=False) == done
    assert told.bytes == CHUNK // 2
