"""Verifying a bucket: every object is read and hashed again, and what is wrong is fetched again, or goes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainctl.base.listing import Listing
from trainctl.base.packed import Arriving, packed
from trainctl.errors import StorageError
from trainctl.node.content.digests import Digests
from trainctl.weights.bucket import keys, long, packs
from trainctl.weights.bucket.chunked import Chunked, Settled
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.hints import put_anew, wrong_hints
from trainctl.weights.bucket.look import references
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.repack import cut
from trainctl.weights.bucket.repair import Repair, Use, Wrong, WrongPack
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.sources import SourceRecords
from trainctl.weights.bucket.spread import spread
from trainctl.weights.bucket.wholes import Claim, claimed, read
from trainctl.weights.mirror.afresh import Origins
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import DAMAGED
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.port import Own
from trainctl.weights.mirror.verify import Finding, Outcome, Verified, findings_arriving

_AT_ONCE = 8
_PACKS_AT_ONCE = 3
"""In memory; other objects are hashed as they arrive."""
_FEW = 4
_CONTENTS_AT_ONCE = 20_000
"""Contents that are lost are looked for in listings, and asked for, so many at a time."""


class _Looked(NamedTuple):
    """One object: whether it is what its name says; of a pack, what should be in it and what of that is right."""

    is_right: bool
    slices: tuple[Slice, ...] = ()
    good: frozenset[str] = frozenset()
    is_readable: bool = True


class _InPack(NamedTuple):
    """A slice of a pack that isn't right; without a name where all slices are, and the pack isn't."""

    pack: str
    sha256: str = ""
    offset: int = 0
    length: int = 0


R = TypeVar("R", Wrong, _InPack)


@dataclass
class _Seen:
    """What a look at every object found wrong."""

    contents: int = 0
    size: int = 0
    claims: Settled = field(default_factory=Settled)
    wrong: Arriving[Wrong] = field(default_factory=lambda: Arriving(tuple, Wrong))
    packs: Arriving[_InPack] = field(default_factory=lambda: Arriving(tuple, _InPack))
    useless: list[str] = field(default_factory=list)
    """Packs of which nobody can tell what is in them, or that are no more."""


def verify(
    shelf: Shelf, origins: Origins | None, progress: Progress | None, own: Own = ()
) -> Verified:
    """Read every content and look for what listings miss; with ``origins`` it is repaired. StorageError where the bucket refuses.

    However many files there are, no list of them is in memory, nor one of objects.
    """
    findings = findings_arriving()
    findings.add(_references(shelf, own, repair=origins is not None))
    referred = references(shelf)
    # Before contents, as whoever mirrors meanwhile puts them the other way round.
    chunked = packed(map(_stem, spread(shelf.objects, keys.CHUNKED)), lambda one: (one,), str)
    listings = list(map(_stem, shelf.objects.list(keys.LISTINGS)))
    seen = _Seen()
    right = DiskSet(_look(shelf, progress, seen, chunked))
    wrong, in_packs = seen.wrong.all(), seen.packs.all()
    repair = Repair(shelf, origins, all_known=not referred.damaged, own=own)
    proven = DiskSet(seen.claims.right.all())
    reading = _Reading(shelf, listings, referred.needs, right, proven)
    listed = findings_arriving()
    listed.add(reading.run(repair))
    still_lost = any(one.sources and one.outcome is not Outcome.REPAIRED for one in listed.all())
    repair = replace(repair, all_known=repair.all_known and not still_lost)
    findings.add(listed.all())
    findings.add(SourceRecords(repair, referred.needs).findings())
    hints = list(wrong_hints(shelf, listings))
    findings.add(map(repair.hint, hints))
    findings.add(repair.slices(pack) for pack in seen.useless)
    findings.add(_mended(repair, reading, in_packs, "pack", partial(_packs_mended, right)))
    names = (one.sha256 for some in (wrong, in_packs) for one in some)
    missing = reading.missing(DiskSet(map(digest, names)))
    for lost in (wrong, (Wrong(one, "missing") for one in missing)):
        findings.add(_mended(repair, reading, lost, "sha256", Repair.contents))
    findings.add(Chunked(repair, chunked, reading.doubted, proven).run())
    if origins is not None:  # a repair leaves packs that are no more, too
        put_anew(shelf, {*hints, *wrong_hints(shelf, listings)})
    findings.add(_strange(shelf))
    return Verified(seen.contents, seen.size, findings.all())


def _references(shelf: Shelf, own: Own, *, repair: bool) -> list[Finding]:
    """One's own are written anew; only its project knows what another says."""
    mine = {Path(keys.reference(str(one["lineage"]), str(one["address"]))): one for one in own}
    findings = []
    for path in references(shelf).damaged:
        repaired = repair and path in mine
        if repaired:
            shelf.objects.put(str(path), checked(mine[path]))
        outcome = Outcome.REPAIRED if repaired else Outcome.WRONG
        users = (str(mine[path]["source"]),) if path in mine else ()
        findings.append(Finding(path, "reference changed", 0, users, outcome))
    return findings


def _strange(shelf: Shelf) -> Iterator[Finding]:
    """What others have put where the mirror's own lies."""
    for prefix in keys.KINDS:
        for one in shelf.objects.strange(prefix):
            yield Finding(Path(one.key), "not the mirror's", one.size, (), Outcome.LEFT, one.key)


def _look(
    shelf: Shelf, progress: Progress | None, seen: _Seen, chunked: Iterable[str]
) -> Iterator[bytes]:
    """Read every object; the contents that are right somewhere. What isn't is noted.

    Chunks of contents of which there is a record come first, in their order, so that they are read once.
    """
    objects = shelf.objects
    in_packs = {digest(_stem(one)) for one in spread(objects, keys.SLICES)}
    there = packed(
        spread(objects, keys.BLOBS), lambda one: (one.key, one.size, one.modified), Found
    )
    tally = Tally(sum(one.size for one in there), progress)

    as_chunks = DiskSet(_chunks(shelf, chunked, seen, tally, in_packs))
    yield from as_chunks
    room = threading.Semaphore(_PACKS_AT_ONCE)

    def look(found: Found) -> _Looked | None:
        if digest(_stem(found)) in in_packs:
            with room:
                looked = _look_into(shelf, _stem(found))
        else:
            sha256 = long.sha256_of(objects, found.key)
            looked = None if sha256 is None else _Looked(sha256 == _stem(found))
        tally.add(found.size, 1)
        return looked

    seen_packs = set[bytes]()
    alone = (one for one in there if digest(_stem(one)) not in as_chunks)
    for found, looked in in_turn(look, alone, _AT_ONCE):
        if looked is not None:
            sha256 = _stem(found)
            seen_packs |= in_packs & {digest(sha256)}
            _note(seen, sha256, found.size, looked)
            yield from map(digest, looked.good)
            if looked.is_right:
                yield digest(sha256)
    left = in_packs - seen_packs
    seen.useless += [one.hex() for one in left if _is_useless(shelf, one.hex())]


def _chunks(
    shelf: Shelf, chunked: Iterable[str], seen: _Seen, tally: Tally, in_packs: Set[bytes]
) -> Iterator[bytes]:
    """Those of larger contents that are right, and no packs besides. What came of the contents is noted; what is wrong is met again among all objects."""
    met = Digests()
    for one in read(shelf, claimed(shelf, chunked), seen.claims.add):
        name = digest(one.sha256)
        if one.is_right and name not in in_packs:
            if met.add(one.sha256):
                _note(seen, one.sha256, one.size, _Looked(is_right=True))
                tally.add(one.size, 1)
            yield name


def _look_into(shelf: Shelf, pack: str) -> _Looked | None:
    """None for one that isn't there any more."""
    data = shelf.objects.get(keys.blob(pack))
    if data is None:
        return None
    is_right = hashlib.sha256(data).hexdigest() == pack
    record = shelf.objects.get(keys.slices(pack))
    if record is None:
        return _Looked(is_right)
    try:
        slices = packs.from_bytes(record)
    except ValueError:
        return _Looked(is_right, is_readable=False)
    return _Looked(is_right, slices, frozenset(cut(data, slices)))


def _note(seen: _Seen, sha256: str, size: int, looked: _Looked) -> None:
    """Note what came of one object."""
    seen.contents += len(looked.slices) or 1
    seen.size += size
    wrong = [_InPack(sha256, *one) for one in looked.slices if one.sha256 not in looked.good]
    if not looked.is_readable:
        seen.useless.append(sha256)
    if looked.slices and (wrong or not looked.is_right):
        seen.packs.add(wrong or [_InPack(sha256)])
    elif not looked.is_right:
        seen.wrong.add((Wrong(sha256, "changed", size),))


def _is_useless(shelf: Shelf, pack: str) -> bool:
    """Whether there are slices still, and no pack: a collection may have come by."""
    there = (shelf.objects.head(key) for key in (keys.slices(pack), keys.blob(pack)))
    return [one is not None for one in there] == [True, False]


class _Reading:
    """Listings, read whenever it is asked what they name; a ``lost`` one is missing."""

    def __init__(
        self,
        shelf: Shelf,
        listings: Sequence[str],
        found: Sequence[Need],
        right: DiskSet,
        proven: DiskSet,
    ) -> None:
        self._shelf = shelf
        self._found = found
        self._right = right
        self._proven = proven
        self._doubts = False
        self._users = {one: need for need in found for one in need.listings}
        self._lost = _lost(shelf, self._users.keys() - set(listings))
        self._listings = (*listings, *self._lost)
        self._missed: Arriving[bytes] = Arriving(lambda one: (one,), bytes)

    def run(self, repair: Repair) -> Iterator[Finding]:
        """Listings that are damaged or missing, and what else says other things than they do; what they name and isn't right is remembered."""
        for listing_id, its in in_turn(self._load, self._listings, _FEW):
            listing = its
            if listing is None:
                what = "listing missing" if listing_id in self._lost else "listing changed"
                yield repair.listing(listing_id, what, self._found)
                listing = self._load(listing_id) or Listing(())
            for file in listing.files:
                names = map(digest, file.chunks or (file.sha256,))
                self._missed.add(one for one in names if one not in self._right)
                is_proven = not file.chunks or Claim.of(file).name in self._proven
                self._doubts = self._doubts or not is_proven

    def doubted(self) -> Iterator[tuple[str, Listing, Need | None]]:
        """Every listing that is right, if one says of what chunks a content is made, and that isn't proven."""
        for listing_id, listing in in_turn(self._load, self._listings if self._doubts else (), _FEW):  # fmt: skip
            if listing is not None:
                yield listing_id, listing, self._users.get(listing_id)

    def missing(self, known: DiskSet) -> Iterator[str]:
        """What they name and isn't there, each once, but for what is known to be wrong."""
        missed = (one.hex() for one in DiskSet(self._missed.all()) if one not in known)
        while some := list(islice(missed, _CONTENTS_AT_ONCE)):
            yield from _missing(self._shelf, some)

    def uses(self, contents: Set[str]) -> Mapping[str, Sequence[Use]]:
        """By content, of those that aren't right, what it is to whom."""
        wanted = {one for one in contents if digest(one) not in self._right}
        uses: dict[str, list[Use]] = {}
        there = self._listings if wanted else ()
        for listing_id, listing in in_turn(self._load, there, _FEW):
            for file in listing.files if listing else ():
                for number, sha256 in enumerate(file.chunks or (file.sha256,)):
                    if sha256 in wanted:
                        offset = number * self._shelf.chunk_bytes
                        use = Use(self._users.get(listing_id), listing_id, file, offset)
                        uses.setdefault(sha256, []).append(use)
        return uses

    def _load(self, listing_id: str) -> Listing | None:
        """None for one that is wrong or missing; what was collected meanwhile is empty."""
        try:
            found = self._shelf.read_listing(listing_id)
        except StorageError as error:
            if error.code != DAMAGED:
                raise
            return None
        return found or (None if listing_id in self._lost else Listing(()))


def _mended(
    repair: Repair,
    reading: _Reading,
    lost: Iterable[R],
    together: str,
    act: Callable[[Repair, list[R]], Iterator[Finding]],
) -> Iterator[Finding]:
    """What becomes of what is lost; some thousand at a time, with those that have the same ``together``."""
    for some in _batches(lost, together):
        mending = replace(repair, uses=reading.uses({one.sha256 for one in some}))
        yield from act(mending, some)
        del mending  # before the next are looked for


def _batches(rows: Iterable[R], together: str) -> Iterator[list[R]]:
    some: list[R] = []
    for _, alike in groupby(rows, attrgetter(together)):
        some += alike
        if len(some) >= _CONTENTS_AT_ONCE:
            yield some
            some.clear()
    if some:
        yield some


def _packs_mended(right: DiskSet, repair: Repair, slices: Iterable[_InPack]) -> Iterator[Finding]:
    for pack, its in groupby(slices, attrgetter("pack")):
        wrong = tuple(Slice(*one[1:]) for one in its if one.sha256)
        yield from repair.pack(WrongPack(pack, wrong), right)


def _stem(found: Found) -> str:
    return keys.stem(found.key)


def _lost(shelf: Shelf, unseen: Set[str]) -> list[str]:
    """Listings that references name and that aren't there; those of references that were dropped meanwhile were collected."""
    if not unseen:
        return []
    named = {one for need in references(shelf).needs for one in need.listings}
    return sorted(one for one in unseen & named if not shelf.objects.head(keys.listing(one)))


def _missing(shelf: Shelf, contents: Sequence[str]) -> list[str]:
    """Those that really aren't there: a collection may have put them into another pack meanwhile."""
    if not contents:
        return []
    slices = [keys.stem(one.key) for one in shelf.objects.list(keys.SLICES)]
    places = packs.find_there(shelf.objects, set(contents), slices)
    there = in_turn(lambda one: one in places or shelf.has_blob(one), contents)
    return [one for one, is_there in there if not is_there]
