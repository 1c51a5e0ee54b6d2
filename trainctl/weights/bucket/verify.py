"""Verifying a bucket: every object is read and hashed again, and what is wrong is fetched again, or goes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainctl.errors import StorageError
from trainctl.model.files import Listing
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.look import referred
from trainctl.weights.bucket.marking import digest
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.repack import cut
from trainctl.weights.bucket.repair import Repair, Use, Wrong, WrongPack
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origins
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.verify import Finding, Verified

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


def verify(shelf: Shelf, origins: Origins | None, progress: Progress | None) -> Verified:
    """Read every content and look for what listings miss; with ``origins`` it is repaired. StorageError where the bucket refuses."""
    found = referred(shelf)
    # Before contents, as whoever mirrors meanwhile puts them the other way round.
    listings = [keys.stem(one.key) for one in shelf.objects.list(keys.LISTINGS)]
    seen = _look(shelf, progress)
    repair = Repair(shelf, origins)
    findings = _read(shelf, listings, found, seen.right, repair)
    findings += [repair.slices(pack) for pack in seen.useless]
    for wrong in seen.packs:
        findings += repair.pack(wrong, seen.right)
    findings += repair.contents([Wrong(one, "changed", size) for one, size in seen.wrong.items()])
    known = seen.wrong.keys() | {one.sha256 for pack in seen.packs for one in pack.wrong}
    missing = _missing(shelf, sorted(repair.uses.keys() - known))
    findings += repair.contents([Wrong(one, "missing") for one in missing])
    return Verified(seen.contents, seen.size, tuple(findings))


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
    """Listings that are damaged; ``repair`` is told of contents that aren't right which files they are or are a part of."""
    users = {one: need for need in found for one in need.listings}
    findings: list[Finding] = []

    def load(listing_id: str) -> Listing | None:
        try:
            return shelf.read_listing(listing_id) or Listing(())
        except StorageError:
            return None

    for listing_id, listing in in_turn(load, listings, _FEW):
        if listing is None:
            findings.append(repair.listing(listing_id, found))
            continue
        for file in listing.files:
            for number, sha256 in enumerate(file.chunks or (file.sha256,)):
                if digest(sha256) not in right:
                    use = Use(users.get(listing_id), listing_id, file, number * shelf.chunk_bytes)
                    repair.uses.setdefault(sha256, []).append(use)
        repair.chunked(file for file in listing.files if file.chunks)
    return findings


def _missing(shelf: Shelf, contents: Sequence[str]) -> list[str]:
    """Those that really aren't there: a collection may have put them into another pack meanwhile."""
    if not contents:
        return []
    slices = [keys.stem(one.key) for one in shelf.objects.list(keys.SLICES)]
    places = packs.find_there(shelf.objects, set(contents), slices)
    there = in_turn(lambda one: one in places or shelf.has_blob(one), contents)
    return [one for one, is_there in there if not is_there]
