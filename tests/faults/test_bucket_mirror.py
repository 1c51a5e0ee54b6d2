"""A mirror in a bucket whose writers and collectors are killed, and that run beside each other, as processes."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import (
    assert_sound,
    await_tick,
    contents,
    contents_of,
    counted,
    gc,
    mirror_in,
    names,
)
from tests.support.buckets import Bucket, moto, rclone
from tests.support.hub import Hub, serve
from tests.support.mirrors import REFERENCE, MemorySource
from tests.support.weights_data import noise
from trainctl.errors import StorageError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.merging import SEVERAL
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.mirror.layout import Reference, fingerprint

CHUNK = 2**18
OTHER = Reference("l2", "weights.x", "o", "p")
ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "model.safetensors": noise(24 * CHUNK + 99),
    "config.json": b"{}",
    **{f"extra/{number}.txt": noise(1000, number) for number in range(20)},
}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with moto() as one:
        yield one


@pytest.fixture(scope="module")
def quick_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Of a server that answers sooner, and ignores conditions, which no collection sets."""
    with rclone(tmp_path_factory.mktemp("s3") / "root") as one:
        yield one


@pytest.fixture
def prefix() -> str:
    """A place in the bucket that nobody else has."""
    return secrets.token_hex(4)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def start(bucket: Bucket, prefix: str, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.bucket_mirrors", bucket.endpoint, prefix, what, str(CHUNK)]  # fmt: skip
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return str(json.loads(output.splitlines()[-1])["listing"])


def killed_at(process: subprocess.Popen[str], done: int) -> None:
    """Kill it once so many bytes have arrived, or where it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("done", 0) >= done:
            break
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("chunks", [1, 12, 24])
def test_killed_in_the_middle_it_resumes(
    bucket: Bucket, hub: Hub, prefix: str, chunks: int
) -> None:
    """After SIGKILL the next process asks only for what no mark speaks of, and nothing is left over."""
    killed_at(start(bucket, prefix, hub.url), chunks * CHUNK)
    mirror = mirror_in(bucket, prefix, CHUNK)
    assert_sound(mirror)
    kept = [
        one
        for one in names(mirror, keys.PARTIAL)
        if "whole" not in one and f"/{keys.PACK}." not in one
    ]
    hub.seen.clear()

    listing = finish(start(bucket, prefix, hub.url))

    asked = [one for one in hub.asked("model.safetensors") if one.headers.get("Range")]
    assert contents(mirror, listing) == FILES
    assert_sound(mirror)
    assert names(mirror, keys.PARTIAL, keys.LEASES) == []
    assert bool(asked) or not kept or chunks == 24


def test_killed_at_random_moments_it_always_comes_right(
    bucket: Bucket, hub: Hub, prefix: str
) -> None:
    """Ten times at moments drawn by chance, one after another: what must hold always does, and at last all is there."""
    drawn = random.Random(7)
    mirror = mirror_in(bucket, prefix, CHUNK)
    for _ in range(10):
        killed_at(start(bucket, prefix, hub.url), drawn.randrange(sum(map(len, FILES.values()))))
        assert_sound(mirror)

    assert contents(mirror, finish(start(bucket, prefix, hub.url))) == FILES
    assert_sound(mirror)


def test_writers_beside_collections_find_what_they_mirrored(bucket: Bucket, prefix: str) -> None:
    """Three projects mirror, look at what they have, and drop it, while collections go on all the time, one of them killed and begun anew."""
    collections = [start(bucket, prefix, "gc") for _ in range(2)]

    def work(lineage: int) -> None:
        for turn in range(4):
            write(bucket, prefix, lineage, turn)

    try:
        with ThreadPoolExecutor(3) as pool:
            writing = [pool.submit(work, one) for one in range(3)]
            while wait(writing, 2).not_done:
                collections[0].kill()
                collections[0].communicate()
                collections[0] = start(bucket, prefix, "gc")
    finally:
        for collection in collections:
            collection.kill()
            collection.communicate()

    assert [one.result() for one in writing] == [None] * 3
    assert_sound(mirror_in(bucket, prefix, 512))


def write(bucket: Bucket, prefix: str, lineage: int, turn: int) -> None:
    """Mirror what others mirror too, in part; have all of it; let go of it."""
    mirror = mirror_in(bucket, prefix, 512)
    some = range(lineage + turn, lineage + turn + 4)
    files = {f"f{number}": noise(1300, number) for number in some}
    files |= {f"small-{number}": noise(90, number) for number in some}
    source = MemorySource(files, piece=512)
    reference = Reference(f"lineage-{lineage}", "weights.model", "ann", "demo")
    resolved = source.resolve(f"hf://acme/{turn}", None, None)
    listing = mirror.mirror(resolved, source, reference)
    assert contents(mirror, listing.id) == files
    mirror.drop_reference(reference.lineage, reference.address)


def test_a_collection_that_is_killed_anywhere_loses_nothing(
    quick_bucket: Bucket, prefix: str
) -> None:
    """Cut off before each of its requests that change something: what is referred to stays whole, and the next one ends the work."""
    mirror = mirror_in(quick_bucket, prefix, 512)
    kept, going = MemorySource({"a": noise(2000)}), MemorySource({"b": noise(2000, 2)})
    listing = mirror.mirror(kept.resolve("hf://a/a", None, None), kept, REFERENCE)
    mirror.mirror(going.resolve("hf://b/b", None, None), going, OTHER)
    mirror.drop_reference(OTHER.lineage, OTHER.address)

    ended = after_each_cut(quick_bucket, mirror, {listing.id: kept.files})

    assert [len(names(one, keys.BLOBS)) for one in ended] == [4] * len(ended)
    assert len(ended) > 4


def test_a_collection_that_is_killed_while_it_puts_packs_again_loses_nothing(
    quick_bucket: Bucket, prefix: str
) -> None:
    """What is used of a pack stays readable in one or the other, and the next one ends the work."""
    small = {f"{number}": noise(40, number) for number in range(10)}
    mirror = mirror_in(quick_bucket, prefix, 512)
    going, kept = MemorySource(small), MemorySource({"1": small["1"], "7": small["7"]})
    mirror.mirror(going.resolve("hf://b/b", None, None), going, OTHER)
    listing = mirror.mirror(kept.resolve("hf://a/a", None, None), kept, REFERENCE)
    mirror.drop_reference(OTHER.lineage, OTHER.address)

    ended = after_each_cut(quick_bucket, mirror, {listing.id: kept.files})

    for one in ended:
        assert one.stored_bytes() == 80
        assert len(names(one, keys.SLICES)) == 1
    assert len(ended) > 8


def test_a_collection_that_is_killed_while_it_merges_packs_loses_nothing(
    quick_bucket: Bucket, prefix: str
) -> None:
    """Every small file stays readable in its own pack or in the one that stands for all, and the next collection ends the work, but for a few packs of which only some had gone.

    Also of packs of one file, whose blob is the file's own, nothing is left.
    """
    files_of = [{"a": noise(20), "b": noise(30, 50)}, *({"a": noise(20, n)} for n in range(3, 7))]
    mirror = mirror_in(quick_bucket, prefix, 1024)
    kept = {}
    for number, files in enumerate(files_of):
        source = MemorySource(files)
        reference = Reference("l", f"weights.n{number}", "o", "p")
        found = source.resolve(f"hf://a/{number}", None, None)
        kept[mirror.mirror(found, source, reference).id] = files

    ended = after_each_cut(quick_bucket, mirror, kept)

    left = [[keys.stem(name) for name in names(one, keys.SLICES)] for one in ended]
    assert [[keys.stem(name) for name in names(one, keys.BLOBS)] for one in ended] == left
    assert all(len(packs) < SEVERAL for packs in left)
    assert [len(packs) for packs in left].count(1) >= len(left) - 2
    assert len(ended) > 15


def after_each_cut(
    bucket: Bucket, mirror: BucketMirror, kept: Mapping[str, Mapping[str, bytes]]
) -> list[BucketMirror]:
    """Copies of a mirror, one for each request of a collection that changes something: there it was cut off before that, and then another one came.

    After both the ``kept`` listings are read. The copies wait for the bucket's clock together.
    """
    stored = {key: mirror.shelf.objects.get(key) or b"" for key in names(mirror)}

    def copied(place: str) -> str:
        objects = mirror_in(bucket, place).shelf.objects
        for key, data in stored.items():
            objects.put(key, data)
        return place

    def assert_whole(one: BucketMirror) -> None:
        assert_sound(one)
        assert contents_of(one, kept) == kept

    def again(place: str) -> BucketMirror:
        return mirror_in(bucket, place, mirror.shelf.chunk_bytes)

    rehearsed, changed = again(copied(secrets.token_hex(4))), list[str]()
    await_tick(rehearsed)
    counted(rehearsed).before = lambda what, key: changed.append(key)
    gc(rehearsed)
    requests = sum(not key.startswith(keys.COLLECTIONS) for key in changed) + len(
        {"begun", "ended"}
    )
    places = [copied(secrets.token_hex(4)) for _ in range(requests)]
    await_tick(mirror)
    for number, place in enumerate(places):
        assert _cut_off(again(place), number + 1)
        assert_whole(again(place))
        again(place).shelf.objects.delete(names(again(place), keys.COLLECTIONS))
    await_tick(mirror)
    for place in places:
        gc(again(place))
        assert_whole(again(place))
    return [*map(again, places)]


def test_a_writer_that_is_killed_anywhere_is_followed_by_one_that_ends_the_work(
    bucket: Bucket, prefix: str
) -> None:
    """Cut off before each of its requests that change something: what must hold does, and what was put of packs isn't asked for again."""
    files = {"large": noise(2000), **{f"{number}": noise(100, number) for number in range(12)}}
    lethal, died = 1, True
    while died:
        source, place = MemorySource(files, announce=False, piece=100), f"{prefix}-{lethal}"
        resolved = source.resolve("hf://a/a", None, None)
        mirror = mirror_in(bucket, place, 512)

        def write(mirror: BucketMirror, source: MemorySource = source) -> None:
            mirror.mirror(source.resolve("hf://a/a", None, None), source, REFERENCE)

        died = _cut_off(mirror_in(bucket, place, 512), lethal, write)
        assert_sound(mirror)
        mirror.shelf.objects.delete(names(mirror, keys.LEASES))
        known = mirror.shelf.marked(resolved).whole
        source.asked = []

        listing = mirror.mirror(resolved, source, REFERENCE)

        assert contents(mirror, listing.id) == files
        assert not {path for path, _ in source.asked} & {
            one.path for one in resolved.files if fingerprint(resolved, one) in known
        }
        assert names(mirror, keys.PARTIAL, keys.LEASES) == []
        lethal += 1
    assert lethal > 15


def _cut_off(mirror: BucketMirror, lethal: int, act: Callable[[BucketMirror], object] = gc) -> bool:
    """Do it, and have it fail before its request of that number that changes something; whether it came so far."""
    left = lethal

    def before(what: str, key: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise StorageError("cut off")

    counted(mirror).before = before
    try:
        act(mirror)
    except StorageError:
        return True
    return False
