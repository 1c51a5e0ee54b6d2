"""What a mirror's records say of a source, where it isn't what upstream announced: nobody trains on it, and it comes anew."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Directory
from tests.support.bucket_mirrors import contents as contents_in
from tests.support.mirrors import REFERENCE, MemorySource, contents, impatient, mirror_at
from trainctl.base.listing import ListedFile, Listing, ResolvedSource, SourceFile
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.announced import can_be
from trainctl.weights.mirror.known import Known, known
from trainctl.weights.mirror.layout import Content, fingerprint
from trainctl.weights.mirror.records import Records
from trainctl.weights.mirror.sums import sums_of

URI = "hf://acme/model"
CHUNK = 1000
GOOD = {
    "large": b"".join(b"good%06d" % n for n in range(360)),
    "small": b"print('good code')",
    "tiny": b"",
}
EVIL = {
    "large": b"".join(b"evil%06d" % n for n in range(360)),
    "small": b"print('evil code')",
    "tiny": b"",
}


class GitSource(MemorySource):
    """Announces git blob ids."""

    def _validator(self, data: bytes) -> str:
        found = sums_of(SourceFile("any", len(data), "git:" + "0" * 40))
        assert found is not None
        found.update(data)
        return f"git:{found.told()['git']}"


def sha256(data: bytes) -> str:
    """Its hex digest."""
    return hashlib.sha256(data).hexdigest()


def source_of(kind: type[MemorySource]) -> tuple[MemorySource, ResolvedSource]:
    """The source as it is, and as it announces itself."""
    source = kind(dict(GOOD))
    return source, source.resolve(URI, None, None)


@pytest.fixture(params=[MemorySource, GitSource], ids=["sha256", "git"])
def kind(request: pytest.FixtureRequest) -> type[MemorySource]:
    """What upstream announces."""
    found: type[MemorySource] = request.param
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files[:-1],
        lambda files: (*files, ListedFile("zzz", 0, sha256(b""))),
        lambda files: (replace(files[0], path="larger"), *files[1:]),
        lambda files: (replace(files[0], size=files[0].size + 1), *files[1:]),
        lambda files: (replace(files[0], sha256=sha256(b"")), *files[1:]),
    ],
    ids=["fewer", "more", "path", "size", "sha256"],
)
def test_a_listing_of_other_files_is_none_of_the_source(change: object) -> None:
    """Both are in the order of paths, so that one look at each is enough."""
    _, resolved = source_of(MemorySource)
    right = tuple(ListedFile(path, len(data), sha256(data)) for path, data in sorted(GOOD.items()))

    assert can_be(resolved, right)
    assert callable(change)
    assert not can_be(resolved, change(right))


def looked(mirror: DirectoryMirror, resolved: ResolvedSource) -> Known:
    """What a plan is told."""
    (found,), _ = known(mirror, [resolved])
    return found


def bring_others(mirror: DirectoryMirror) -> Listing:
    """What somebody else has there."""
    other = MemorySource(dict(EVIL))
    reference = replace(REFERENCE, address="weights.other")
    return mirror.mirror(other.resolve("file:///other", None, None), other, reference)


def test_a_reference_that_names_the_listing_of_other_content_is_not_believed(
    tmp_path: Path,
) -> None:
    """It would be a plan's word that all is there, and what is trained on where upstream can't be asked later."""
    mirror = mirror_at(tmp_path, CHUNK)
    listing = bring_others(mirror)
    _, resolved = source_of(MemorySource)
    mirror._layout.write_reference(REFERENCE.record({}, resolved, listing.id, 0))

    found = looked(mirror, resolved)

    assert found.listing is None
    assert [here for _, _, here in found.files] == [False, False, True]


def test_records_of_a_directory_that_lie_cost_a_transfer(
    tmp_path: Path, kind: type[MemorySource]
) -> None:
    """Of large and of small files; what was right after all is not fetched again then."""
    mirror = mirror_at(tmp_path, CHUNK)
    bring_others(mirror)
    source, resolved = source_of(kind)
    small = Records.of(mirror._layout, URI)
    for file in resolved.files:
        data = EVIL[file.path]
        chunks = tuple(sha256(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
        said = Content(sha256(data), len(data), chunks if len(data) > CHUNK else ())
        key = fingerprint(resolved, file)
        if said.chunks:
            mirror._layout.learn(key, said)
        else:
            small.note(key, said)
    small.flush()
    for path in tmp_path.glob("fingerprints/small/*/*"):
        os.utime(path, (1, 1))

    first = mirror.mirror(resolved, source, REFERENCE)
    asked = {path for path, _ in source.asked}
    source.asked.clear()
    second = mirror.mirror(resolved, source, REFERENCE)

    assert contents(mirror, first.id) == GOOD
    assert asked == {"large", "small"}
    assert second == first
    assert source.asked == []
    assert looked(mirror, resolved).listing == first.id


class Counting(Directory):
    """A bucket that counts what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return super().get(key)


def bucket(root: Path) -> BucketMirror:
    """As a new process has it, which remembers nothing."""
    return BucketMirror(Shelf(Counting(root), CHUNK), impatient())


def told(root: Path, resolved: ResolvedSource) -> str | None:
    """The listing that a plan is told of."""
    return bucket(root).look([resolved]).known[0].listing


def swapped(root: Path, resolved: ResolvedSource, files: dict[str, bytes]) -> str:
    """A record of the source that names a listing of other content, and says so of its files."""
    other = MemorySource(files)
    reference = replace(REFERENCE, address="weights.other")
    at = other.resolve("file:///other", None, None)
    listing = bucket(root).mirror(at, other, reference).id
    turned = {fingerprint(resolved, file): sha256(files[file.path]) for file in resolved.files}
    record = b"".join(long.record(resolved, listing, sorted(turned.items())))
    Directory(root).put(keys.record(resolved), record)
    return listing


@pytest.mark.parametrize("files", [EVIL, {**GOOD, "small": EVIL["small"]}], ids=["all", "code"])
def test_records_of_a_bucket_that_lie_cost_a_transfer(
    tmp_path: Path, kind: type[MemorySource], files: dict[str, bytes]
) -> None:
    """Whatever they say of all, or of one small file; then they are right."""
    source, resolved = source_of(kind)
    evil = swapped(tmp_path, resolved, files)
    planned = told(tmp_path, resolved)

    first = bucket(tmp_path).mirror(resolved, source, REFERENCE)
    asked = {path for path, _ in source.asked}
    source.asked.clear()
    second = bucket(tmp_path).mirror(resolved, source, REFERENCE)

    assert planned in ((evil, None) if kind is GitSource else (None,))
    assert contents_in(bucket(tmp_path), first.id) == GOOD
    assert asked == {path for path, data in GOOD.items() if files[path] != data}
    assert second.id == first.id
    assert source.asked == []
    assert told(tmp_path, resolved) == first.id


def test_marks_of_a_bucket_that_lie_cost_a_transfer(
    tmp_path: Path, kind: type[MemorySource]
) -> None:
    """They say what has arrived of a source that isn't whole."""
    source, resolved = source_of(kind)
    other = MemorySource(dict(EVIL))
    other_at = other.resolve("file:///other", None, None)
    bucket(tmp_path).mirror(other_at, other, replace(REFERENCE, address="weights.other"))
    for file in resolved.files:
        key = keys.mark(resolved, fingerprint(resolved, file), "whole", sha256(EVIL[file.path]))
        Directory(tmp_path).put(key, b"")

    listing = bucket(tmp_path).mirror(resolved, source, REFERENCE)

    assert contents_in(bucket(tmp_path), listing.id) == GOOD


def test_a_bucket_is_read_back_once(tmp_path: Path) -> None:
    """Only what upstream's digest can't be compared of without: one request for each pack, by each process; a plan reads nothing back."""
    files = {**GOOD, **{f"{number:03}": b"%d" % number for number in range(100)}}
    source = GitSource(files)
    resolved = source.resolve(URI, None, None)
    bucket(tmp_path).mirror(resolved, source, REFERENCE)
    mirror = bucket(tmp_path)
    objects = mirror.shelf.objects
    assert isinstance(objects, Counting)

    mirror.look([resolved])
    by_plan = [one for one in objects.read if one.startswith(keys.BLOBS)]
    mirror.mirror(resolved, source, REFERENCE)
    mirror.mirror(resolved, source, replace(REFERENCE, address="weights.again"))
    read = [one for one in objects.read if one.startswith(keys.BLOBS)]

    assert by_plan == []
    assert len(read) == len(set(read)) == 1 + len(range(0, len(GOOD["large"]), CHUNK))
