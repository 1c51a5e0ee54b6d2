"""What a bucket holds, read: contents, listings, and what is known of sources. Nothing is written here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource, is_digest, load_listing
from trainctl.errors import StorageError
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.objects import Objects
from trainctl.weights.bucket.spread import spread
from trainctl.weights.mirror.announced import can_be
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import DAMAGED, Content, unless_damaged

SMALL_BYTES = 2**20
"""Below this size files are put into packs."""
_MOST_RECORDS = 8
_FEW = 4
"""Marks of packs name all that is in one."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Shelf:
    """A mirror's bucket. ``chunk_bytes`` is the format's and smaller only in tests."""

    objects: Objects
    chunk_bytes: int = CHUNK_BYTES
    _listings: dict[str, Listing] = field(default_factory=dict)
    """Those that were loaded: a listing that was there is what it was."""
    proven: set[tuple[str, str]] = field(default_factory=set)
    """Listings, each with the pin whose files they were proven to be."""

    def is_small(self, size: int) -> bool:
        """Whether a file of that size is put into a pack."""
        return size < min(SMALL_BYTES, self.chunk_bytes)

    def document(self, key: str) -> dict[str, Any] | None:
        """A JSON object; None where there is none. StorageError for what is something else."""
        data = self.objects.get(key)
        if data is None:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise damaged(self.objects, key, "it is no JSON object")
        return found

    def hint(self, key: str) -> dict[str, Any]:
        """A JSON object that everybody can do without; an empty one where there is none, or none that can be read."""
        return unless_damaged(lambda: self.document(key)) or {}

    def load_listing(self, listing_id: str) -> Listing | None:
        """The listing, or None if it is not there. StorageError when it is not what its name says."""
        if listing_id not in self._listings:
            listing = self.read_listing(listing_id)
            if listing is None:
                return None
            self._listings[listing_id] = listing
        return self._listings[listing_id]

    def read_listing(self, listing_id: str) -> Listing | None:
        """The same, not remembered."""
        key = keys.listing(listing_id)
        with long.opened(self.objects, key, f"{listing_id}.json") as path:
            try:
                return None if path is None else load_listing(path)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise damaged(self.objects, key, str(error)) from None

    def listing_if_right(self, listing_id: str | None) -> Listing | None:
        """The same for who can do without."""
        return unless_damaged(partial(self.read_listing, listing_id)) if listing_id else None

    def listing_of(self, record: str) -> str | None:
        """The listing that a source's record names, by the record's key."""
        with long.opened(self.objects, record) as path:
            return None if path is None else long.listing_in(path)

    def has_listing(self, listing_id: str) -> bool:
        """Whether the listing is there, and so all its content; one that is damaged is not. To hash it costs less than to read it."""
        key = keys.listing(listing_id)
        if listing_id in self._listings:
            return self.objects.head(key) is not None
        with long.opened(self.objects, key) as path:
            return path is not None and file_sha256(path) == listing_id

    def content(self, sha256: str, size: int) -> Content | None:
        """The content of that digest, if it is there: all its chunks are then."""
        if size <= self.chunk_bytes:
            found = self.objects.head(keys.blob(sha256))
            return Content(sha256, size) if found and found.size == size else None
        document = self.hint(keys.chunked(sha256))
        try:
            chunks = tuple(map(str, document["chunks"]))
        except (KeyError, TypeError):
            return None
        whole = len(chunks) == -(-size // self.chunk_bytes) and all(map(is_digest, chunks))
        return Content(sha256, size, chunks) if whole else None

    def has_blob(self, sha256: str) -> bool:
        """Whether there is an object of that content alone."""
        return self.objects.head(keys.blob(sha256)) is not None

    def lying_bytes(self) -> int:
        """The bytes of all content."""
        return sum(one.size for one in spread(self.objects, keys.BLOBS))

    def whole(self, resolved: ResolvedSource) -> Listing | None:
        """The listing of the source at this very pin, if all of it is there; none that can't be what upstream announced."""
        listing_id = self.listing_of(keys.record(resolved))
        if listing_id is None:
            return None
        gone = listing_id in self._listings and not self.has_listing(listing_id)
        listing = None if gone else unless_damaged(lambda: self.load_listing(str(listing_id)))
        return listing if listing is not None and can_be(resolved, listing.files) else None

    def turned_out(self, resolved: ResolvedSource) -> Earlier:
        """What is there of a source's fingerprints by what its other pins turned out to be; the newest of these count.

        What a record says that is damaged, or whose listing is lost, has to be looked for.
        """
        contents, chunks, claims = DiskMap(), DiskMap(), DiskMap()
        listings: list[str] = []
        lost: list[str] = []
        records = sorted(
            self.objects.list(f"{keys.FINGERPRINTS}/{keys.source_of(resolved)}"),
            key=lambda one: one.modified,
        )
        for record in records[-_MOST_RECORDS:]:
            with long.opened(self.objects, record.key) as path:
                if path is None:
                    continue
                listing_id = long.listing_in(path)
                listing = self.listing_if_right(listing_id) if long.is_right(path) else None
                if listing_id is not None:
                    (lost if listing is None else listings).append(listing_id)
                parted = (file for file in listing.files if file.chunks) if listing else ()
                chunks.update((one.sha256, json.dumps(one.chunks)) for one in parted)
                with path.open("rb") as stream:
                    (contents if listing else claims).update(long.fingerprints_in(stream))
        return Earlier(contents, chunks, tuple(listings), claims, tuple(lost))

    def marked(self, resolved: ResolvedSource) -> Marks:
        """What is known of a source that is not whole."""
        packs: list[str] = []
        whole, chunks = DiskMap(), DiskMap()
        chunks.update(self._marked(resolved, whole, packs))
        marks = (keys.pack_mark(resolved, pack) for pack in packs)
        for _, document in in_turn(self.hint, marks, _FEW):
            files = (document.get("files") or {}).items()
            whole.update(pair for pair in files if all(map(is_digest, pair)))
        return Marks(whole, chunks, tuple(packs))

    def _marked(
        self, resolved: ResolvedSource, whole: DiskMap, packs: list[str]
    ) -> Iterator[tuple[str, str]]:
        """Of each file's fingerprint the chunks that are there, as JSON; what is ``whole`` and which ``packs`` there are is noted."""
        names = (one.key.rpartition("/")[2] for one in self.objects.list(keys.marks(resolved)))
        for fingerprint, marks in groupby(names, lambda name: name.partition(".")[0]):
            found: dict[int, str] = {}
            for mark in marks:
                what, _, sha256 = mark.partition(".")[2].partition(".")
                if fingerprint == keys.PACK:
                    packs.append(what)
                elif what == "whole":
                    whole.update([(fingerprint, sha256)])
                elif what.isdecimal():
                    found[int(what)] = sha256
            if 0 in found:
                yield fingerprint, json.dumps(tuple(_unbroken(found)))


@dataclass(frozen=True)
class Earlier:
    """What other versions of a source have: the sha256 by fingerprint, of large contents their chunks as JSON, and the listings that these are of.

    ``claims`` are the sha256 of versions whose listings are ``lost``, or whose records are damaged: nobody knows whether they are there.
    """

    contents: DiskMap
    chunks: DiskMap
    listings: tuple[str, ...]
    claims: DiskMap
    lost: tuple[str, ...]

    def find(self, sizes: Mapping[str, int]) -> dict[str, Content]:
        """The contents of these fingerprints, by size, as far as they are known."""
        found = self.contents.find(sizes)
        chunks = self.chunks.find(set(found.values()))
        return {
            one: Content(sha256, sizes[one], tuple(json.loads(chunks.get(sha256, "[]"))))
            for one, sha256 in found.items()
        }


@dataclass(frozen=True)
class Marks:
    """By fingerprint: files that are there, and the digests of the chunks that are, from the first on, as JSON; and packs."""

    whole: DiskMap
    chunks: DiskMap
    packs: tuple[str, ...] = ()

    def chunks_of(self, fingerprints: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Of those of these files that have any."""
        found = self.chunks.find(fingerprints).items()
        return {one: tuple(json.loads(text)) for one, text in found}


def _unbroken(found: dict[int, str]) -> Iterator[str]:
    number = 0
    while number in found:
        yield found[number]
        number += 1


def at_once(act: Callable[[T], R], values: Sequence[T], most: int = 32) -> list[R]:
    """The results of many requests, in order; the first error is raised."""
    if len(values) < 2:
        return [act(one) for one in values]
    with ThreadPoolExecutor(min(most, len(values)), thread_name_prefix="bucket") as pool:
        return list(pool.map(act, values))


def damaged(objects: Objects, key: str, why: str) -> StorageError:
    """An object of ours that is not what it should be."""
    return StorageError(
        f"{objects.url}/{key} is damaged: {why}",
        "trainctl mirror verify --repair mends or removes it; what is missing then the next apply mirrors again.",
        code=DAMAGED,
    )


def damaged_reference(objects: Objects, key: str, why: str) -> StorageError:
    """A reference that is not what was written."""
    return StorageError(
        f"{objects.url}/{key} is damaged: {why}",
        "trainctl mirror verify --repair writes it anew in the project whose it is. If that is no more, remove the object.",
        code=DAMAGED,
    )
