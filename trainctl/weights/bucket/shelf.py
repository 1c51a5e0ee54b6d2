"""What a bucket holds, read: contents, listings, and what is known of sources. Nothing is written here."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from trainctl.errors import StorageError
from trainctl.model.files import CHUNK_BYTES, Listing, ResolvedSource, load_listing
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.objects import Objects
from trainctl.weights.mirror.fetch import by_fingerprint
from trainctl.weights.mirror.layout import Content

AT_ONCE = 32
"""Small requests at the same time: what takes time is the way there and back."""
SMALL_BYTES = 2**20
"""Below this size files are put into packs."""
_MOST_RECORDS = 8
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Shelf:
    """A mirror's bucket. ``chunk_bytes`` is the format's and smaller only in tests."""

    objects: Objects
    chunk_bytes: int = CHUNK_BYTES
    _listings: dict[str, Listing] = field(default_factory=dict)
    """Those that were loaded: a listing that was there is what it was."""

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

    def load_listing(self, listing_id: str) -> Listing | None:
        """The listing, or None if it is not there. StorageError when it is not what its name says."""
        if listing_id in self._listings:
            return self._listings[listing_id]
        key = keys.listing(listing_id)
        data = self.objects.get(key)
        if data is None:
            return None
        try:
            listing = Listing.from_bytes(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(self.objects, key, str(error)) from None
        if listing.id != listing_id:
            raise damaged(self.objects, key, "its content has another digest than its name")
        self._listings[listing_id] = listing
        return listing

    def read_listing(self, listing_id: str) -> Listing | None:
        """The same, not remembered, and never all of its files in memory."""
        key = keys.listing(listing_id)
        data = self.objects.get(key)
        if data is None:
            return None
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{listing_id}.json"
            path.write_bytes(data)
            try:
                return load_listing(path)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise damaged(self.objects, key, str(error)) from None

    def has_listing(self, listing_id: str) -> bool:
        """Whether the listing is there, and so all its content."""
        return self.objects.head(keys.listing(listing_id)) is not None

    def content(self, sha256: str, size: int) -> Content | None:
        """The content of that digest, if it is there: all its chunks are then."""
        if size <= self.chunk_bytes:
            found = self.objects.head(keys.blob(sha256))
            return Content(sha256, size) if found and found.size == size else None
        document = self.document(keys.chunked(sha256))
        try:
            chunks = tuple(map(str, document["chunks"])) if document else ()
        except (KeyError, TypeError):
            return None
        whole = len(chunks) == -(-size // self.chunk_bytes)
        return Content(sha256, size, chunks) if whole else None

    def has_blob(self, sha256: str) -> bool:
        """Whether there is an object of that content alone."""
        return self.objects.head(keys.blob(sha256)) is not None

    def whole(self, resolved: ResolvedSource) -> Whole | None:
        """The source at this very pin, if all of it is there."""
        document = self.document(keys.record(resolved)) or {}
        listing, digests = document.get("listing"), document.get("files")
        if not isinstance(digests, dict):
            return None
        # A version that is told by its listing has other fingerprints than it had upstream.
        if resolved.known_as is None and not set(by_fingerprint(resolved)) <= digests.keys():
            return None
        return Whole(str(listing), digests) if self.has_listing(str(listing)) else None

    def turned_out(self, resolved: ResolvedSource) -> Earlier:
        """What is there of a source's fingerprints by what its other pins turned out to be; the newest of these count."""
        found: dict[str, Content] = {}
        listings: list[str] = []
        wanted = set(by_fingerprint(resolved))
        records = sorted(
            self.objects.list(f"{keys.FINGERPRINTS}/{keys.source_of(resolved)}"),
            key=lambda one: one.modified,
        )
        for record in records[-_MOST_RECORDS:]:
            document = self.document(record.key) or {}
            listing = self.load_listing(str(document.get("listing")))
            if listing is None or not self.has_listing(listing.id):
                continue
            listings.append(listing.id)
            contents = {
                one.sha256: Content(one.sha256, one.size, one.chunks) for one in listing.files
            }
            for fingerprint, sha256 in dict(document.get("files") or {}).items():
                if fingerprint in wanted and sha256 in contents:
                    found[fingerprint] = contents[sha256]
        return Earlier(found, tuple(listings))

    def marked(self, resolved: ResolvedSource) -> Marks:
        """What is known of a source that is not whole."""
        whole: dict[str, str] = {}
        chunks: dict[str, dict[int, str]] = {}
        packs: list[str] = []
        for one in self.objects.list(keys.marks(resolved)):
            fingerprint, _, rest = one.key.rpartition("/")[2].partition(".")
            what, _, sha256 = rest.partition(".")
            if fingerprint == keys.PACK:
                packs.append(rest)
            elif what == "whole":
                whole[fingerprint] = sha256
            elif what.isdecimal():
                chunks.setdefault(fingerprint, {})[int(what)] = sha256
        for document in at_once(lambda pack: self.document(keys.pack_mark(resolved, pack)), packs):
            whole.update((document or {}).get("files") or {})
        unbroken = {one: tuple(_unbroken(found)) for one, found in chunks.items()}
        return Marks(whole, unbroken, tuple(packs))


@dataclass(frozen=True)
class Whole:
    """A source that is there: its listing's id, and by fingerprint the sha256 of its content."""

    listing: str
    digests: dict[str, str]


@dataclass(frozen=True)
class Earlier:
    """What other versions of a source have: contents by fingerprint, and the listings that these are of."""

    contents: dict[str, Content]
    listings: tuple[str, ...]


@dataclass(frozen=True)
class Marks:
    """By fingerprint: files that are there, and of others the digests of the chunks that are, from the first on; and packs."""

    whole: dict[str, str]
    chunks: dict[str, tuple[str, ...]]
    packs: tuple[str, ...] = ()


def _unbroken(found: dict[int, str]) -> Iterator[str]:
    number = 0
    while number in found:
        yield found[number]
        number += 1


def at_once(act: Callable[[T], R], values: Sequence[T], most: int = AT_ONCE) -> list[R]:
    """The results of many requests, in order; the first error is raised."""
    if len(values) < 2:
        return [act(one) for one in values]
    with ThreadPoolExecutor(min(most, len(values)), thread_name_prefix="bucket") as pool:
        return list(pool.map(act, values))


def in_turn(
    act: Callable[[T], R], values: Iterable[T], most: int = AT_ONCE
) -> Iterator[tuple[T, R]]:
    """Each value and its result, in order, however many there are; the first error is raised."""
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(most, thread_name_prefix="bucket") as pool:
        for value in values:
            waiting.append((value, pool.submit(act, value)))
            if len(waiting) == most:
                first, result = waiting.popleft()
                yield first, result.result()
        while waiting:
            first, result = waiting.popleft()
            yield first, result.result()


def damaged(objects: Objects, key: str, why: str) -> StorageError:
    """An object of ours that is not what it should be."""
    return StorageError(
        f"{objects.url}/{key} is damaged: {why}",
        "Remove that object and run apply again; what is missing then is mirrored again.",
        code="mirror-damaged",
    )
