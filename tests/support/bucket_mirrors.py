"""A mirror in a bucket of this machine's, and a look at what lies in it; as a program, something to kill.

``python -m tests.support.bucket_mirrors ENDPOINT PREFIX HUB CHUNK_BYTES`` mirrors hf://acme/model;
with ``gc`` in place of HUB it collects, again and again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tests.support.bucket_stores import place_in
from tests.support.buckets import Bucket
from tests.support.clouds import Azure
from tests.support.google_xml import GoogleXml
from tests.support.mirrors import impatient
from trainctl.base.listing import ResolvedSource
from trainctl.errors import Busy, TrainctlError
from trainctl.objects.opening import opened
from trainctl.objects.place import place_of
from trainctl.sources.hf import HubSource
from trainctl.spi.sources import Credential
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.objects import Found, Objects
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.stored import Stored
from trainctl.weights.mirror import Reference as OldReference
from trainctl.weights.mirror.collect import Collecting

REFERENCE = OldReference("lineage-1", "weights.model", "ann@laptop", "demo")

CHUNK = 4096


@dataclass
class Counted:
    """Objects that count what is asked of them. ``before`` is told of each put and delete first, and may raise: a server did part of many deletions then."""

    objects: Objects
    asked: Counter[str] = field(default_factory=Counter)
    before: Callable[[str, str], None] = lambda what, key: None

    @property
    def url(self) -> str:
        return self.objects.url

    def get(self, key: str) -> bytes | None:
        self.asked["get"] += 1
        return self.objects.get(key)

    def fetch(self, key: str, into: BinaryIO) -> bool:
        self.asked["get"] += 1
        return self.objects.fetch(key, into)

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        self.asked["put"] += 1
        self.before("put", key)
        self.objects.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.asked["put"] += 1
        self.before("put", key)
        return self.objects.put_if_absent(key, data)

    def head(self, key: str) -> Found | None:
        self.asked["head"] += 1
        return self.objects.head(key)

    def list(self, prefix: str) -> Iterator[Found]:
        self.asked["list"] += 1
        return self.objects.list(prefix)

    def strange(self, prefix: str) -> Iterator[Found]:
        self.asked["list"] += 1
        return self.objects.strange(prefix)

    def delete(self, keys: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        self.asked["delete"] += 1
        done = 0
        try:
            for key in keys:
                self.before("delete", key)
                done += 1
        finally:
            self.objects.delete(keys[:done], before)

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        self.asked["sign"] += 1
        return self.objects.sign(keys, seconds)


class Directory:
    """See Objects: a directory that stands for a bucket, and never for more than one program."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = root.as_uri()

    def get(self, key: str) -> bytes | None:
        path = self._root / key
        return path.read_bytes() if path.is_file() else None

    def fetch(self, key: str, into: BinaryIO) -> bool:
        path = self._root / key
        into.seek(0)
        into.truncate()
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            shutil.copyfileobj(stream, into)
        return True

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Path):
            shutil.copyfile(data, path)
        else:
            path.write_bytes(data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        absent = self.head(key) is None
        if absent:
            self.put(key, data)
        return absent

    def head(self, key: str) -> Found | None:
        path = self._root / key
        return self._found(path) if path.is_file() else None

    def list(self, prefix: str) -> Iterator[Found]:
        return (one for one in self._listed(prefix) if keys.is_ours(one.key))

    def strange(self, prefix: str) -> Iterator[Found]:
        return (one for one in self._listed(prefix) if one.size and not keys.is_ours(one.key))

    def delete(self, keys: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        before()
        for key in keys:
            (self._root / key).unlink(missing_ok=True)

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        return [(self._root / key).as_uri() for key in keys]

    def _listed(self, prefix: str) -> Iterator[Found]:
        found = (
            Path(folder) / name
            for folder, _, names in os.walk(self._root / prefix)
            for name in names
        )
        yield from map(self._found, sorted(found))

    def _found(self, path: Path) -> Found:
        status = path.stat()
        return Found(path.relative_to(self._root).as_posix(), status.st_size, status.st_mtime)


def mirror_in(
    bucket: Bucket | GoogleXml | Azure, prefix: str, chunk_bytes: int = CHUNK
) -> BucketMirror:
    """A mirror that does not wait between tries; its objects are Counted."""
    url, environ, value = place_in(bucket, prefix)
    place = place_of(url, None, environ)
    credential = Credential(value, "the test")
    retry = impatient()
    stored = Counted(Stored(url, lambda: opened(place, credential, environ), retry))
    return BucketMirror(Shelf(stored, chunk_bytes), retry)


def counted(mirror: BucketMirror) -> Counted:
    """What a mirror of ``mirror_in`` asks."""
    objects = mirror.shelf.objects
    assert isinstance(objects, Counted)
    return objects


def names(mirror: BucketMirror, *prefixes: str) -> list[str]:
    """The keys of its objects."""
    prefixes = prefixes or (
        keys.BLOBS, keys.CHUNKED, keys.SLICES, keys.PACKS, keys.LISTINGS, keys.FINGERPRINTS, keys.PARTIAL, keys.REFERENCES, keys.LEASES, keys.COLLECTIONS,
    )  # fmt: skip
    return [one.key for prefix in prefixes for one in mirror.shelf.objects.list(prefix)]


def marked_chunks(mirror: BucketMirror, resolved: ResolvedSource) -> list[list[str]]:
    """Of each file that has come in part, the chunks that are there."""
    return [json.loads(text) for _, text in mirror.shelf.marked(resolved).chunks]


def contents(mirror: BucketMirror, listing_id: str) -> dict[str, bytes]:
    """Every file of a listing as the bucket has it; each is held against its name."""
    return contents_of(mirror, [listing_id])[listing_id]


def contents_of(mirror: BucketMirror, listings: Iterable[str]) -> dict[str, dict[str, bytes]]:
    """The same of some listings; the bucket is read once."""
    there = _stored(mirror)
    found: dict[str, dict[str, bytes]] = {}
    for listing_id in listings:
        listing = Shelf(mirror.shelf.objects).load_listing(listing_id)
        assert listing is not None
        its = found.setdefault(listing_id, {})
        for file in listing.files:
            its[file.path] = b"".join(there[one] for one in file.chunks or (file.sha256,))
            assert hashlib.sha256(its[file.path]).hexdigest() == file.sha256
    return found


def _stored(mirror: BucketMirror) -> dict[str, bytes]:
    """Every content that is there, as a blob or as a slice of one; each is held against its name."""
    objects, found = mirror.shelf.objects, {}
    in_packs = {
        keys.stem(one): packs.load(objects, keys.stem(one)) for one in names(mirror, keys.SLICES)
    }
    for one in names(mirror, keys.BLOBS):
        data = objects.get(one)
        if data is not None:  # a collection took it meanwhile
            found[keys.stem(one)] = data
            for part in in_packs.get(keys.stem(one)) or ():
                found[part.sha256] = data[part.offset : part.offset + part.length]
    assert {one: hashlib.sha256(data).hexdigest() for one, data in found.items()} == {
        one: one for one in found
    }
    return found


def assert_sound(mirror: BucketMirror) -> None:
    """What must hold whatever happened: every object is what its name says, every listing has its content."""
    shelf = Shelf(mirror.shelf.objects, mirror.shelf.chunk_bytes)
    there = _stored(mirror)
    for one in names(mirror, keys.LISTINGS):
        listing = shelf.load_listing(keys.stem(one))
        assert listing is not None
        assert {
            part for file in listing.files for part in file.chunks or (file.sha256,)
        } <= there.keys()
    for one in names(mirror, keys.CHUNKED):
        record = shelf.document(one)
        assert record is not None
        assert set(record["chunks"]) <= there.keys()
    assert set(map(keys.stem, names(mirror, keys.SLICES))) <= there.keys()


def gc(mirror: BucketMirror, **more: Any) -> int:
    """Collect without a grace period; the number of contents that went, none where another is at it."""
    try:
        return mirror.collect(Collecting(grace_seconds=0, **more)).blobs
    except Busy:
        return 0


def await_tick(mirror: BucketMirror) -> None:
    """Until the bucket's clock, which may tell whole seconds only, has moved on: what is as young as a collection stays."""
    objects = mirror.shelf.objects

    def now() -> float:
        objects.put("tick", b"")
        found = objects.head("tick")
        assert found is not None
        return found.modified

    begun = now()
    while int(now()) <= int(begun):
        time.sleep(0.05)


def main(endpoint: str, prefix: str, hub: str, chunk_bytes: str) -> int:
    """See the module."""
    mirror = mirror_in(Bucket(endpoint, "models"), prefix, int(chunk_bytes))
    while hub == "gc":
        gc(mirror)
    source = HubSource(hub)

    def progress(done: int, total: int, files: int) -> None:
        print(json.dumps({"done": done, "total": total, "files": files}), flush=True)

    try:
        resolved = source.resolve("hf://acme/model", None, None)
        listing = mirror.mirror(resolved, source, REFERENCE, progress=progress)
    except TrainctlError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        return error.exit_code
    print(json.dumps({"listing": listing.id}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
