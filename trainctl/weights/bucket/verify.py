"""Verifying a bucket: every object is read and hashed again, and what is wrong is fetched again, or goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from trainctl.errors import StorageError
from trainctl.model.files import Listing
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.hints import put_anew, wrong_hints
from trainctl.weights.bucket.look import references
from trainctl.weights.bucket.marking import digest
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.repack import cut
from trainctl.weights.bucket.repair import Repair, Use, Wrong, WrongPack
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origins
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import DAMAGED
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.port import Own
from trainctl.weights.mirror.verify import Finding, Outcome, Verified

_AT_ONCE = 8
_FEW = 4


class _Looked(NamedTuple):
    """One object: whether it is what its name says; of a pack, what should be in it and what of that is right."""

    is_right: bool
    slices: tuple[Slice, ...] = ()
    good: frozenset[str] = frozenset()
    is_readable: bool = True


@dataclass
class _Seen:
    """What a look at every object found. Contents that are right somewhere are told by their digests."""

    contents: int = 0
    size: int = 0
    right: set[bytes] = field(default_factory=set)
    wrong: dict[str, int] = field(default_factory=dict)
    packs: list[WrongPack] = field(default_factory=list)
    useless: list[str] = field(default_factory=list)
    """Packs of which nobody can tell what is in them, or that are no more."""


def verify(
    shelf: Shelf, origins: Origins | None, progress: Progress | None, own: Own = ()
) -> Verified:
    """Read every content and look for what listings miss; with ``origins`` it is repaired. StorageError where the bucket refuses."""
    damaged = _references(shelf, own, repair=origins is not None)
    referred = references(shelf)
    # Before contents, as whoever mirrors meanwhile puts them the other way round.
    chunked, listings = (
        [keys.stem(one.key) for one in shelf.objects.list(some)]
        for some in (keys.CHUNKED, keys.LISTINGS)
    )
    seen = _look(shelf, progress)
    repair = Repair(shelf, origins, all_known=not referred.damaged, own=own)
    listed = _read(shelf, listings, referred.needs, seen.right, repair)
    still_lost = any(one.sources and one.outcome is not Outcome.REPAIRED for one in listed)
    repair = replace(repair, all_known=repair.all_known and not still_lost)
    findings = [*damaged, *listed, *repair.chunked_alone(chunked, seen.right)]
    hints = list(wrong_hints(shelf, listings))
    findings += map(repair.hint, hints)
    findings += [repair.slices(pack) for pack in seen.useless]
    for wrong in seen.packs:
        findings += repair.pack(wrong, seen.right)
    findings += repair.contents([Wrong(one, "changed", size) for one, size in seen.wrong.items()])
    known = seen.wrong.keys() | {one.sha256 for pack in seen.packs for one in pack.wrong}
    missing = _missing(shelf, sorted(repair.uses.keys() - known))
    findings += repair.contents([Wrong(one, "missing") for one in missing])
    if origins is not None:  # a repair leaves packs that are no more, too
        put_anew(shelf, {*hints, *wrong_hints(shelf, listings)})
    return Verified(seen.contents, seen.size, tuple(findings))


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


def _look(shelf: Shelf, progress: Progress | None) -> _Seen:
    """Read every object."""
    seen, objects = _Seen(), shelf.objects
    in_packs = {digest(keys.stem(one.key)) for one in objects.list(keys.SLICES)}
    tally = Tally(sum(one.size for one in objects.list(keys.BLOBS)), progress)

    def look(found: Found) -> _Looked | None:
        sha256 = keys.stem(found.key)
        looked = _look_at(shelf, sha256, is_pack=digest(sha256) in in_packs)
        tally.add(found.size, 1)
        return looked

    for found, looked in in_turn(look, objects.list(keys.BLOBS), _AT_ONCE):
        if looked is not None:
            sha256 = keys.stem(found.key)
            in_packs.discard(digest(sha256))
            _take(seen, sha256, found.size, looked)
    seen.useless += [one.hex() for one in in_packs if _is_useless(shelf, one.hex())]
    return seen


def _look_at(shelf: Shelf, sha256: str, *, is_pack: bool) -> _Looked | None:
    """None for an object that isn't there any more."""
    data = shelf.objects.get(keys.blob(sha256))
    if data is None:
        return None
    is_right = hashlib.sha256(data).hexdigest() == sha256
    record = shelf.objects.get(keys.slices(sha256)) if is_pack else None
    if record is None:
        return _Looked(is_right)
    try:
        slices = packs.from_bytes(record)
    except ValueError:
        return _Looked(is_right, is_readable=False)
    return _Looked(is_right, slices, frozenset(cut(data, slices)))


def _take(seen: _Seen, sha256: str, size: int, looked: _Looked) -> None:
    """Note what came of one object."""
    seen.contents += len(looked.slices) or 1
    seen.size += size
    seen.right.update(map(digest, looked.good))
    wrong = tuple(one for one in looked.slices if one.sha256 not in looked.good)
    if not looked.is_readable:
        seen.useless.append(sha256)
    if looked.is_right:
        seen.right.add(digest(sha256))
    if looked.slices and (wrong or not looked.is_right):
        seen.packs.append(WrongPack(sha256, looked.slices, wrong))
    elif not looked.is_right:
        seen.wrong[sha256] = size


def _is_useless(shelf: Shelf, pack: str) -> bool:
    """Whether there are slices still, and no pack: a collection may have come by."""
    there = (shelf.objects.head(key) for key in (keys.slices(pack), keys.blob(pack)))
    return [one is not None for one in there] == [True, False]


def _read(
    shelf: Shelf, listings: Sequence[str], found: Sequence[Need], right: set[bytes], repair: Repair
) -> list[Finding]:
    """Listings that are damaged or missing, and what else says other things than they do; ``repair`` is told of contents that aren't right
    which files they are or are a part of."""
    users = {one: need for need in found for one in need.listings}
    lost = _lost(shelf, users.keys() - set(listings))
    findings: list[Finding] = []

    def load(listing_id: str) -> Listing | None:
        """None for one that is wrong or missing; what was collected meanwhile is empty."""
        try:
            return shelf.read_listing(listing_id) or (None if listing_id in lost else Listing(()))
        except StorageError as error:
            if error.code != DAMAGED:
                raise
            return None

    for listing_id, its in in_turn(load, (*listings, *lost), _FEW):
        listing = its
        if listing is None:
            what = "listing missing" if listing_id in lost else "listing changed"
            findings.append(repair.listing(listing_id, what, found))
            listing = load(listing_id) or Listing(())
        for sha256, use in _uses(shelf, users.get(listing_id), listing_id, listing):
            if digest(sha256) not in right:
                repair.uses.setdefault(sha256, []).append(use)
        findings += repair.chunked(file for file in listing.files if file.chunks)
    return findings


def _uses(
    shelf: Shelf, need: Need | None, listing_id: str, listing: Listing
) -> Iterator[tuple[str, Use]]:
    """What every object that a listing names is to it."""
    for file in listing.files:
        for number, sha256 in enumerate(file.chunks or (file.sha256,)):
            yield sha256, Use(need, listing_id, file, number * shelf.chunk_bytes)


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
