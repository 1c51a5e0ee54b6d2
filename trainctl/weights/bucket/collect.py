"""Collecting what nobody needs any more of a bucket. Why it is safe is in DESIGN.md, "Mirror in a bucket"."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainctl.errors import Busy, StorageError
from trainctl.ledger.clock import SystemClock
from trainctl.model.files import Listing
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.beating import Beating, watched
from trainctl.weights.bucket.look import referred
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.exclusive import holder_name
from trainctl.weights.mirror.collect import Collected, Collecting, Removed
from trainctl.weights.mirror.needs import Need, Watch

_AT_ONCE = 1000
"""What S3 deletes in one request."""


def collect(shelf: Shelf, asked: Collecting) -> Collected:
    """Delete what no reference needs. Busy if another collection is at it.

    May be killed anywhere, and may run beside writers and other collections.
    """
    if asked.dry_run:
        return _Collection(shelf, asked).preview(keys.clock(secrets.token_hex(8)))
    key = keys.collection(holder_name(), secrets.token_hex(4))
    with Beating(shelf.objects, key, {}) as beating:
        try:
            return _Collection(shelf, asked, beating).run(key)
        finally:
            shelf.objects.delete([key])


@dataclass(frozen=True)
class _Mark:
    """What may go, in the order in which it goes."""

    listings: tuple[Found, ...] = ()
    records: tuple[Found, ...] = ()
    blobs: tuple[Found, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listings or self.records or self.blobs)

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.blobs)


@dataclass
class _Collection:
    """One collection."""

    shelf: Shelf
    asked: Collecting
    beating: Beating | None = None
    watch: Watch = field(default_factory=lambda: Watch(SystemClock().elapsed))

    def preview(self, key: str) -> Collected:
        """What ``run`` would do now; of what it writes, which is to learn the bucket's time, nothing stays."""
        self.shelf.objects.put(key, b"")
        now = self._time(key)
        self.shelf.objects.delete([key])
        found = referred(self.shelf)
        dropped = self._unused(found, now)
        kept = [need for need in found if need not in dropped]
        busy = self.watch.busy(kept)
        mark = _Mark() if busy else self._mark(kept, now)
        return self._report(mark, dropped, kept, busy)

    def run(self, key: str) -> Collected:
        """Announce, wait, look who needs what, delete."""
        objects, now = self.shelf.objects, self._time(key)
        self._refuse_beside_others(key)
        found = referred(self.shelf)
        if not (self.watch.busy(found) or self._unused(found, now) or self._mark(found, now)):
            return self._report(_Mark(), (), found, ())
        self._wait("so that whoever is mirroring is seen")
        found = referred(self.shelf)
        dropped = self._unused(found, now)
        kept = [need for need in found if need not in dropped]
        busy = self.watch.busy(kept)
        mark = _Mark() if busy else self._mark(kept, now)
        report = self._report(mark, dropped, kept, busy)
        self._delete([str(need.path) for need in dropped])
        for some in (mark.listings, mark.records, mark.blobs):
            self._delete([one.key for one in some])
        if mark.listings or mark.blobs:
            stale = [one.key for one in objects.list(keys.LEASES) if one.modified < now]
            self._delete(stale)
        return report

    def _refuse_beside_others(self, mine: str) -> None:
        others = [one for one in self.shelf.objects.list(keys.COLLECTIONS) if one.key != mine]
        found = [(one.key, self.shelf.document(one.key)) for one in others if one.size]
        if self.watch.busy([watched(key, record) for key, record in found if record]):
            raise Busy(
                f"another collection of {self.shelf.objects.url} is under way",
                "Try again when it ended; one that was killed is forgotten by the next apply.",
            )

    def _time(self, key: str) -> float:
        """Now, by the bucket's clock."""
        found = self.shelf.objects.head(key)
        if found is None:
            raise StorageError(
                f"{self.shelf.objects.url} does not show what was put there just now",
                "Nothing was deleted. Try again.",
            )
        return found.modified

    def _unused(self, found: Sequence[Need], now: float) -> list[Need]:
        limit = self.asked.unused_seconds
        if limit is None:
            return []
        busy = self.watch.busy(found)
        return [need for need in found if need.last_used < now - limit and need not in busy]

    def _wait(self, why: str) -> None:
        if self.asked.grace_seconds > 0:
            self.asked.tell(f"Waiting {self.asked.grace_seconds:g} s, {why}.")
            self.asked.wait(self.asked.grace_seconds)

    def _mark(self, kept: Sequence[Need], now: float) -> _Mark:
        """What no kept listing names. What is younger than this collection stays, whosever it is, and what that names."""
        wanted = frozenset().union(*(need.listings for need in kept))
        unfinished = any(need.record.get("listing") is None for need in kept)
        listings, staying = self._apart(
            keys.LISTINGS, lambda one: keys.stem(one.key) not in wanted, now
        )
        listed = self._named(staying)
        documents = self._documents(keys.FINGERPRINTS)
        records = [
            found
            for found, document in documents
            if found.modified < now and document.get("listing") not in wanted
        ]
        marks, left = self._apart(keys.PARTIAL, lambda one: not unfinished, now)
        named = listed | {one.key.rpartition(".")[2] for one in left}
        chunked, parted = self._apart(
            keys.CHUNKED, lambda one: keys.stem(one.key) not in named, now
        )
        unlisted = [one for one in parted if keys.stem(one.key) not in listed]
        for document in at_once(lambda one: self.shelf.document(one.key), unlisted):
            named.update((document or {}).get("chunks") or ())
        blobs, _ = self._apart(keys.BLOBS, lambda one: keys.stem(one.key) not in named, now)
        return _Mark(tuple(listings), (*records, *marks, *chunked), tuple(blobs))

    def _apart(
        self, prefix: str, is_free: Callable[[Found], bool], now: float
    ) -> tuple[list[Found], list[Found]]:
        """Of what is there, what may go and what stays."""
        going: list[Found] = []
        staying: list[Found] = []
        for one in self.shelf.objects.list(prefix):
            (going if one.modified < now and is_free(one) else staying).append(one)
        return going, staying

    def _documents(self, prefix: str) -> list[tuple[Found, dict[str, Any]]]:
        found = list(self.shelf.objects.list(prefix))
        documents = at_once(lambda one: self.shelf.document(one.key), found)
        return [(one, document or {}) for one, document in zip(found, documents, strict=True)]

    def _named(self, listings: Sequence[Found]) -> set[str]:
        """The contents, and the chunks of them, that listings name."""
        found: set[str] = set()
        for listing in at_once(self.shelf.load_listing, [keys.stem(one.key) for one in listings]):
            for file in listing.files if listing else ():
                found.update((file.sha256, *file.chunks))
        return found

    def _delete(self, found: Sequence[str]) -> None:
        for start in range(0, len(found), _AT_ONCE):
            self.shelf.objects.delete(found[start : start + _AT_ONCE], self._go_on)

    def _go_on(self) -> None:
        """Nothing is deleted once somebody may have thought that this process is dead."""
        if self.beating is not None and self.beating.late:
            raise StorageError(
                f"the collection of {self.shelf.objects.url} was cut off for too long",
                "It deleted part of what it should, and nothing that is needed. Run it again.",
            )

    def _report(
        self, mark: _Mark, dropped: Sequence[Need], kept: Sequence[Need], busy: Sequence[Need]
    ) -> Collected:
        loaded = [self._readable(keys.stem(one.key)) for one in mark.listings]
        return Collected(
            dry_run=self.asked.dry_run,
            bytes=mark.bytes,
            blobs=len(mark.blobs),
            listings=tuple(
                Removed(one.id, len(one.files), one.size) for one in loaded if one is not None
            ),
            dropped=tuple(dropped),
            kept=tuple(kept),
            busy=tuple(busy),
        )

    def _readable(self, listing_id: str) -> Listing | None:
        try:
            return self.shelf.load_listing(listing_id)
        except StorageError:
            return None
