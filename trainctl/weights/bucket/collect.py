"""Collecting what nobody needs any more of a bucket. Why it is safe is in DESIGN.md, "Mirror in a bucket"."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice

from trainctl.base.clock import SystemClock
from trainctl.base.exclusive import holder_name
from trainctl.errors import Busy, StorageError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.beating import Beating, await_others
from trainctl.weights.bucket.look import referred
from trainctl.weights.bucket.marking import Mark, mark
from trainctl.weights.bucket.repack import put_again, still_double
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.collect import Collected, Collecting, Removed
from trainctl.weights.mirror.needs import Need, Watch

_AT_ONCE = 1000
"""What S3 deletes in one request."""


def collect(shelf: Shelf, asked: Collecting) -> Collected:
    """Delete what no reference needs. Busy if another collection is at it.

    May be killed anywhere, and may run beside writers and other collections.
    """
    if asked.dry_run:
        return _Collection(shelf, asked).preview()
    key = keys.collection(holder_name(), secrets.token_hex(4))
    with Beating(shelf.objects, key, {}) as beating:
        try:
            return _Collection(shelf, asked, beating).run(key)
        finally:
            shelf.objects.delete([key])


@dataclass
class _Collection:
    """One collection."""

    shelf: Shelf
    asked: Collecting
    beating: Beating | None = None
    watch: Watch = field(default_factory=lambda: Watch(SystemClock().elapsed))

    def preview(self) -> Collected:
        """What ``run`` would do now. It writes nothing, and so has no time of the bucket's: nothing is younger than it, and unused is what this machine's clock says."""
        found = referred(self.shelf)
        dropped = self._unused(found, time.time())
        kept = [need for need in found if need not in dropped]
        busy = self.watch.busy(kept)
        going = Mark() if busy else mark(self.shelf, kept, math.inf)
        return self._report(going, dropped, kept, busy)

    def run(self, key: str) -> Collected:
        """Announce, wait, look who needs what, delete."""
        objects, now = self.shelf.objects, self._time(key)
        self._refuse_beside_others(key)
        found = referred(self.shelf)
        if not (self.watch.busy(found) or self._unused(found, now) or mark(self.shelf, found, now)):
            return self._report(Mark(), (), found, ())
        self._wait("so that whoever is mirroring is seen")
        found = referred(self.shelf)
        dropped = self._unused(found, now)
        kept = [need for need in found if need not in dropped]
        busy = self.watch.busy(kept)
        going = Mark() if busy else mark(self.shelf, kept, now)
        report = self._report(going, dropped, kept, busy)
        replaced = put_again(self.shelf, going.batches, self._go_on)
        # One that was killed may have left the beginnings of the same packs, which were marked.
        anew = {*map(keys.blob, replaced.values()), *map(keys.slices, replaced.values())}
        self._delete(str(need.path) for need in dropped)
        self._delete(going.listings)
        for going_now in (
            chain(going.records, map(keys.slices, replaced)),
            chain(going.blobs, map(keys.blob, replaced)),
        ):
            self._delete(key for key in going_now if key not in anew)
        for some in still_double(self.shelf, going.doubles, replaced):
            self._delete(some)
        if going.listings or going.blobs:
            self._delete([one.key for one in objects.list(keys.LEASES) if one.modified < now])
        return report

    def _refuse_beside_others(self, mine: str) -> None:
        if not await_others(self.shelf, mine, self.asked.wait, self.asked.tell):
            raise Busy(
                f"another collection of {self.shelf.objects.url} is under way",
                "Try again when it ended.",
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

    def _delete(self, found: Iterable[str]) -> None:
        rest = iter(found)
        while some := list(islice(rest, _AT_ONCE)):
            self.shelf.objects.delete(some, self._go_on)

    def _go_on(self) -> None:
        """Nothing is deleted once somebody may have thought that this process is dead."""
        if self.beating is not None and self.beating.late:
            raise StorageError(
                f"the collection of {self.shelf.objects.url} was cut off for too long",
                "It deleted part of what it should, and nothing that is needed. Run it again.",
            )

    def _report(
        self, going: Mark, dropped: Sequence[Need], kept: Sequence[Need], busy: Sequence[Need]
    ) -> Collected:
        return Collected(
            dry_run=self.asked.dry_run,
            bytes=going.bytes,
            blobs=going.contents,
            listings=tuple(self._removed(going.listings)),
            dropped=tuple(dropped),
            kept=tuple(kept),
            busy=tuple(busy),
        )

    def _removed(self, listings: Sequence[str]) -> Iterator[Removed]:
        for key in listings:
            with suppress(StorageError):
                listing = self.shelf.read_listing(keys.stem(key))
                if listing is not None:
                    yield Removed(keys.stem(key), len(listing.files), listing.size)
