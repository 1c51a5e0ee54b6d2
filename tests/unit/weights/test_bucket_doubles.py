"""Small files of a bucket's mirror that are objects of their own, and in packs, too: which of them go, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.bucket_mirrors import await_tick, contents, gc, names
from tests.support.buckets import Bucket, rclone
from tests.support.mirrors import REFERENCE, MemorySource
from tests.support.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.merging import Double
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.repack import still_double
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.layout import Reference

pytestmark = pytest.mark.integration

OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")
Make = Callable[[], BucketMirror]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with rclone(tmp_path_factory.mktemp("s3") / "root") as one:
        yield one


def bring(mirror: BucketMirror, files: dict[str, bytes], reference: Reference, uri: str) -> Listing:
    source = MemorySource(files)
    return mirror.mirror(source.resolve(uri, None, None), source, reference)


def one_pack(mirror: BucketMirror) -> str:
    """The only pack that is there."""
    (found,) = names(mirror, keys.SLICES)
    return keys.stem(found)


def left_alone(make: Make, files: dict[str, bytes]) -> tuple[Listing, str]:
    """A mirror where one file is in a pack, and is an object of its own from before that, too; its name."""
    alone = hashlib.sha256(files["2"]).hexdigest()
    make().shelf.objects.put(keys.blob(alone), files["2"])
    await_tick(make())
    listing = bring(make(), files, REFERENCE, "hf://acme/model")
    return listing, alone


def test_an_object_of_its_own_goes_where_a_later_pack_has_the_file(make: Make) -> None:
    """It is what a collection leaves that was killed while it merged packs; a dry run tells of it."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    listing, _ = left_alone(make, files)
    await_tick(make())

    told = make().collect(Collecting(dry_run=True))
    found = make().collect(Collecting(grace_seconds=0))

    assert (told.blobs, told.bytes) == (found.blobs, found.bytes) == (1, 100)
    assert [keys.stem(one) for one in names(make(), keys.BLOBS)] == [one_pack(make())]
    assert contents(make(), listing.id) == files
    assert gc(make()) == 0


def damage(mirror: BucketMirror, alone: str, files: dict[str, bytes]) -> None:
    """The pack hasn't got the file any more."""
    objects, key = mirror.shelf.objects, keys.blob(one_pack(mirror))
    objects.put(key, (objects.get(key) or b"").replace(files["2"], b"-" * 100))


def put_anew(mirror: BucketMirror, alone: str, files: dict[str, bytes]) -> None:
    """As a repair does."""
    await_tick(mirror)
    mirror.shelf.objects.put(keys.blob(alone), files["2"])


def share(mirror: BucketMirror, alone: str, files: dict[str, bytes]) -> None:
    """Another project has this file and not the others of the pack."""
    bring(mirror, {"its": files["2"]}, OTHER, "hf://else/model")


@pytest.mark.parametrize("what", [damage, put_anew, share])
def test_an_object_of_its_own_stays_where_it_may_be_needed(
    make: Make, what: Callable[[BucketMirror, str, dict[str, bytes]], None]
) -> None:
    """Where the pack isn't what it should be, the object was put again since, or somebody has not got what else is in the pack."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    _, alone = left_alone(make, files)
    what(make(), alone, files)
    await_tick(make())

    gc(make())

    assert make().shelf.has_blob(alone)


def test_an_object_of_its_own_that_was_put_again_meanwhile_stays(make: Make) -> None:
    """It is looked at once more just before it would go."""
    files = {f"{n}": noise(100, n) for n in range(5)}
    _, alone = left_alone(make, files)
    shelf, pack = make().shelf, one_pack(make())
    before, later = (shelf.objects.head(key) for key in (keys.blob(alone), keys.slices(pack)))
    assert before
    assert later
    double = Double(before, pack, later.modified)

    assert list(still_double(shelf, [double], {})) == [[before.key]]
    put_anew(make(), alone, files)
    assert list(still_double(shelf, [double], {})) == [[]]
