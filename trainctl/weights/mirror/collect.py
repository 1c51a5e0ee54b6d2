"""Collecting what nobody needs any more of a mirror. Why it is safe is in DESIGN.md, "Collection"."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from trainctl.base import below
from trainctl.base.exclusive import lease
from trainctl.base.packed import packed
from trainctl.errors import Busy
from trainctl.weights.mirror.collect_packs import Doomed, doomed_packs, move_kept, needed_again
from trainctl.weights.mirror.condemned import (
    Condemned,
    condemned_by_others,
    own_name,
    restore,
)
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import FULL, explained
from trainctl.weights.mirror.keeping import Keeping, readable, require_listings
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.needs import Need, Watch, needs
from trainctl.weights.mirror.packed import read_index
from trainctl.weights.mirror.partial import discard, holder_of, let_go, own_place, sweep
from trainctl.weights.mirror.records import compact_all

GRACE_SECONDS = 30.0
"""How long what is condemned waits for references that a network file system shows late."""


@dataclass(frozen=True)
class Collecting:
    """What is asked for. ``unused_seconds``: references not renewed for so long are dropped; None: none is."""

    dry_run: bool = False
    grace_seconds: float = GRACE_SECONDS
    unused_seconds: float | None = None
    wait: Callable[[float], object] = time.sleep
    tell: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Removed:
    """A listing that nobody referred to."""

    listing: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Collected:
    """What was, or would be, removed, and what stays for whom.

    ``bytes`` and ``blobs`` are what goes; ``busy`` are references that are being mirrored for: while there is one no
    content goes. ``dropped`` are references that nobody renewed.
    """

    dry_run: bool
    bytes: int = 0
    blobs: int = 0
    listings: tuple[Removed, ...] = ()
    dropped: tuple[Need, ...] = ()
    kept: tuple[Need, ...] = ()
    busy: tuple[Need, ...] = ()


@dataclass(frozen=True)
class _Mark:
    """What may go, as one look found it."""

    listings: tuple[Path, ...] = ()
    blobs: Sequence[Path] = ()
    packs: tuple[Doomed, ...] = ()
    partials: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listings or self.blobs or self.packs or self.partials)

    @property
    def all(self) -> Iterator[Path]:
        """All of it that isn't on its way only."""
        return chain(self.listings, self.blobs, (one.path for one in self.packs))


def collect(mirror: DirectoryMirror, asked: Collecting) -> Collected:
    """Delete what no reference needs. Busy if another collection is at it; StorageError where the disk refuses.

    May be killed anywhere, and may run beside writers and other collections.
    """
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        if not layout.root.is_dir():
            return Collected(asked.dry_run)
        if asked.dry_run:
            return _Collection(layout, asked, mirror.clock).preview()
        layout.prepare()
        never = threading.Event()
        with lease(layout.partial / "collection.lease", never, _once()) as held:
            if not held:
                raise Busy(
                    f"another collection of {mirror.root} is under way", "Try again when it ended."
                )
            return _Collection(layout, asked, mirror.clock).run()


def _once() -> Callable[[], bool]:
    """Says "go on" once, then "enough": the lease is tried a second time after a dead holder's was removed."""
    asked = iter((False, False))
    return lambda: next(asked, True)


@dataclass
class _Collection:
    """One collection."""

    layout: Layout
    asked: Collecting
    clock: Callable[[], float]
    watch: Watch = field(default_factory=Watch)

    def preview(self) -> Collected:
        """What ``run`` would do now; writes nothing."""
        found = needs(self.layout)
        dropped = self._unused(found)
        kept = [need for need in found if need not in dropped]
        busy = self.watch.busy(kept)
        mark = _Mark() if busy else self._mark(kept, self._hidden)
        size = _sizes(mark.blobs) + sum(one.bytes for one in mark.packs)
        size += sum(_held(self.layout, path) for path in mark.partials)
        return self._report(mark, dropped, kept, busy, size)

    def run(self) -> Collected:
        """Mark, condemn, wait, look again, delete."""
        restore(self.layout)
        sweep(self.layout)
        found = needs(self.layout)
        dropped = self._unused(found)
        if dropped:  # or none of them, where this is to be refused
            require_listings(self.layout, (need for need in found if need not in dropped))
        for need in dropped:
            below.remove(self.layout.root, need.path)
        with Condemned.of_one(self.layout) as condemned:
            return self._run(condemned, dropped)

    def _run(self, condemned: Condemned, dropped: Sequence[Need]) -> Collected:
        condemned.announce()
        kept = needs(self.layout)
        if self.watch.busy(kept):
            self._wait("somebody is mirroring")
            condemned.announce()
            kept = needs(self.layout)
        busy = self.watch.busy(kept)
        mark = _Mark() if busy else self._movable(self._mark(kept))
        if not mark:
            return self._report(mark, dropped, kept, busy, 0)
        removed = self._report(mark, dropped, kept, (), 0)
        condemned.take(mark.all)
        mark, _, busy = self._reprieve(condemned, mark)
        if mark:
            self._wait("so that references which are written just now are seen")
            mark, kept, busy = self._reprieve(condemned, mark)
        condemned.delete(mark.listings)
        freed = condemned.delete(mark.blobs) + sum(
            _remove(self.layout, path) for path in mark.partials
        )
        freed += sum(one.bytes for one in mark.packs if condemned.delete([one.path]))
        self._forget_fingerprints()
        gone = {path.stem for path in mark.listings}
        listings = tuple(one for one in removed.listings if one.listing in gone)
        return replace(self._report(mark, dropped, kept, busy, freed), listings=listings)

    def _reprieve(self, condemned: Condemned, mark: _Mark) -> tuple[_Mark, list[Need], list[Need]]:
        """Look again; what is needed after all is put back, and everything is while somebody mirrors."""
        found = needs(self.layout)
        busy = self.watch.busy(found)
        if busy:
            condemned.put_back(mark.all)
            return _Mark(), found, busy
        wanted = _wanted(found)
        condemned.put_back(path for path in mark.listings if path.stem in wanted)
        listings = tuple(path for path in mark.listings if path.stem not in wanted)
        keeping = Keeping(self.layout, found, map(condemned.place, listings), {})
        condemned.put_back(path for path in mark.blobs if path.name in keeping)
        packs = self._packs_again(condemned, mark, keeping)
        condemned.put_back(one.path for one in packs)
        left = _Mark(
            listings,
            _paths(path for path in mark.blobs if path.name not in keeping),
            tuple(one for one in mark.packs if one not in packs),
            () if keeping.is_unfinished else mark.partials,
        )
        return left, found, busy

    def _packs_again(self, condemned: Condemned, mark: _Mark, keeping: Keeping) -> Sequence[Doomed]:
        found = ((one, read_index(condemned.place(one.path))) for one in mark.packs)
        return needed_again(self.layout, found, keeping)

    def _movable(self, mark: _Mark) -> _Mark:
        """With those packs only of which what is needed could be put into others: that takes room."""
        try:
            return replace(mark, packs=tuple(move_kept(self.layout, mark.packs)))
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.asked.tell("There is no room to put into new packs what is needed of old ones.")
            return replace(mark, packs=tuple(one for one in mark.packs if not one.places))

    def _mark(
        self, kept: Sequence[Need], hidden: Callable[[str], Iterator[Path]] = lambda kind: iter(())
    ) -> _Mark:
        """What no kept listing names. What is written meanwhile may be marked too, and is reprieved.

        ``hidden`` finds what is condemned of one of the mirror's directories.
        """
        wanted = _wanted(kept)
        places = {_listing_id(path): path for path in hidden("listings")}
        listings = (*self.layout.listings(), *places.values())
        going = tuple(path for path in listings if _listing_id(path) not in wanted)
        keeping = Keeping(self.layout, kept, going, places)
        blobs = chain((path for path, _ in self.layout.blobs()), hidden("blobs"))
        packs = [*self.layout.pack_places(), *hidden("packs")]
        return _Mark(
            going,
            _paths(path for path in blobs if own_name(path) not in keeping),
            tuple(doomed_packs(packs, keeping)),
            () if keeping.is_unfinished else tuple(_abandoned(self.layout)),
        )

    def _hidden(self, kind: str) -> Iterator[Path]:
        """What a collection has condemned that was interrupted: the next one puts it back before it looks."""
        return condemned_by_others(self.layout, kind)

    def _unused(self, found: Sequence[Need]) -> list[Need]:
        limit = self.asked.unused_seconds
        if limit is None:
            return []
        busy = self.watch.busy(found)
        before = self.clock() - limit
        return [need for need in found if need.last_used < before and need not in busy]

    def _wait(self, why: str) -> None:
        if self.asked.grace_seconds > 0:
            self.asked.tell(f"Waiting {self.asked.grace_seconds:g} s, {why}.")
            self.asked.wait(self.asked.grace_seconds)

    def _forget_fingerprints(self) -> None:
        """Drop records of contents that are gone; they are hints, and one too few costs a transfer at most."""
        compact_all(Contents(self.layout))
        for path in self.layout.fingerprints():
            try:
                sha256 = json.loads(below.read(self.layout.root, path))["sha256"]
            except OSError:
                continue
            except (ValueError, KeyError, TypeError):
                sha256 = ""
            if below.file_size(self.layout.blob_name(str(sha256))) is None:
                below.remove(self.layout.root, path)

    def _report(
        self,
        mark: _Mark,
        dropped: Sequence[Need],
        kept: Sequence[Need],
        busy: Sequence[Need],
        freed: int,
    ) -> Collected:
        loaded = readable(self.layout, mark.listings)
        return Collected(
            dry_run=self.asked.dry_run,
            bytes=freed,
            blobs=len(mark.blobs) + sum(one.contents for one in mark.packs),
            listings=tuple(Removed(one.id, len(one.files), one.size) for one in loaded),
            dropped=tuple(dropped),
            kept=tuple(kept),
            busy=tuple(busy),
        )


def _paths(paths: Iterable[Path]) -> Sequence[Path]:
    """The same, however many."""
    return packed(paths, lambda path: (str(path),), Path)


def _wanted(found: Iterable[Need]) -> frozenset[str]:
    """The listings that references name."""
    return frozenset().union(*(need.listings for need in found))


def _listing_id(path: Path) -> str:
    return Path(own_name(path)).stem


def _sizes(paths: Iterable[Path]) -> int:
    return sum(below.file_size(str(path)) or 0 for path in paths)


def _abandoned(layout: Layout) -> Iterator[Path]:
    """Transfers that nobody is at and that nobody needs finished."""
    return (path for path in layout.partials() if let_go(holder_of(path)))


def _held(layout: Layout, directory: Path) -> int:
    """What a transfer that isn't whole takes, in bytes."""
    return sum(one.size for one in layout.inside(f"partial/{directory.name}"))


def _remove(layout: Layout, directory: Path) -> int:
    """Take it over by name first, as whoever resumes a transfer does: only one of them gets it."""
    mine = own_place(layout.partial, directory.name.partition(".")[0])
    try:
        below.move(layout.root, directory, mine)
    except FileNotFoundError:
        return 0
    return discard(mine)
