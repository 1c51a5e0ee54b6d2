"""What of a bucket nobody needs any more, and which packs are worth putting together again. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from trainctl.errors import StorageError
from trainctl.model.files import Listing
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.merging import Double, Remnant, batches, doubles, is_small
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.keeping import not_known
from trainctl.weights.mirror.layout import DAMAGED
from trainctl.weights.mirror.needs import Need

_FEW = 4
"""Listings and records may be long."""
_LONG_BYTES = 2**20


@dataclass(frozen=True)
class Mark:
    """What may go, in the order in which it goes; ``batches`` are packs that become one, ``doubles`` small files that are in packs, too. ``contents`` and ``bytes`` count what goes, from these packs too."""

    listings: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    batches: tuple[tuple[Remnant, ...], ...] = ()
    doubles: tuple[Double, ...] = ()
    contents: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.listings or self.records or self.blobs or self.batches or self.doubles)


@dataclass
class _Packs:
    """What becomes of packs. ``unused`` are contents and bytes, of each that may be put together anew."""

    kept: set[bytes] = field(default_factory=set)
    going: list[str] = field(default_factory=list)
    thin: list[Remnant] = field(default_factory=list)
    small: list[Remnant] = field(default_factory=list)
    unused: dict[str, tuple[int, int]] = field(default_factory=dict)
    contents: int = 0
    doubles: list[Double] = field(default_factory=list)
    holders: list[Remnant] = field(default_factory=list)
    """The packs of these."""


def mark(shelf: Shelf, kept: Sequence[Need], now: float) -> Mark:
    """What no kept listing names. What is younger than this collection stays, whosever it is, and what that names."""
    wanted = frozenset().union(*(need.listings for need in kept))
    unfinished = any(need.record.get("listing") is None for need in kept)

    def is_free(prefix: str, free: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        return _apart(shelf.objects.list(prefix), lambda one: free(keys.stem(one.key)), now)

    listings, staying = is_free(keys.LISTINGS, lambda name: name not in wanted)
    hints, _ = is_free(keys.PACKS, lambda name: name not in wanted)
    records = _stale_records(shelf, wanted, now)
    marks, left = is_free(keys.PARTIAL, lambda _: not unfinished)
    listed, parts = _named(shelf, {keys.stem(one) for one in staying}, kept)
    marked = {digest(one.rpartition(".")[2]) for one in left}
    named = listed | marked
    chunked, parted = is_free(keys.CHUNKED, lambda name: digest(name) not in named)
    for _, document in in_turn(
        shelf.document, (one for one in parted if digest(keys.stem(one)) not in listed)
    ):
        parts.update(map(digest, (document or {}).get("chunks") or ()))
    named |= parts
    loose, alone = _blobs(shelf, named, parts | marked, now)
    found = _packs(shelf, named, parts, marked, alone, now)
    together = batches(shelf, kept, found.thin, found.small)
    unused = [found.unused[one.pack] for batch in together for one in batch]
    blobs = [one for one in loose if digest(keys.stem(one.key)) not in found.kept]
    lone = [one for one in found.doubles if digest(keys.stem(one.alone.key)) not in found.kept]
    twice = doubles(shelf, kept, lone, found.holders)
    going = {keys.stem(one) for one in found.going}
    single = sum(keys.stem(one.key) not in going for one in blobs)
    return Mark(
        tuple(listings),
        (*hints, *records, *marks, *chunked, *found.going),
        tuple(one.key for one in blobs),
        tuple(together),
        twice,
        single + len(twice) + found.contents + sum(contents for contents, _ in unused),
        sum(one.size for one in (*blobs, *(each.alone for each in twice)))
        + sum(size for _, size in unused),
    )


def _blobs(
    shelf: Shelf, named: set[bytes], needed: set[bytes], now: float
) -> tuple[list[Found], dict[bytes, Found]]:
    """Objects that nobody names, packs among them; and those that are small files, by their names, unless they are ``needed`` as such."""
    loose: list[Found] = []
    alone: dict[bytes, Found] = {}
    for one in shelf.objects.list(keys.BLOBS):
        name = digest(keys.stem(one.key))
        if one.modified < now and name not in named:
            loose.append(one)
        elif one.modified < now and shelf.is_small(one.size) and name not in needed:
            alone[name] = one
    return loose, alone


def _packs(
    shelf: Shelf,
    named: set[bytes],
    parts: set[bytes],
    marked: set[bytes],
    alone: Mapping[bytes, Found],
    now: float,
) -> _Packs:
    """Of packs those without anything that is named go; of thin ones less than half is named, of small ones little in all. What can't be read stays."""
    found = _Packs()

    def load(one: Found) -> tuple[Slice, ...] | None:
        pack = keys.stem(one.key)
        is_free = one.modified < now and digest(pack) not in marked
        return packs.load(shelf.objects, pack) if is_free else None

    for one, slices in in_turn(load, shelf.objects.list(keys.SLICES)):
        pack = keys.stem(one.key)
        used = tuple(each for each in slices or () if digest(each.sha256) in named)
        size, left = (sum(each.length for each in some) for some in (slices or (), used))
        if slices is not None and not used:
            found.going.append(one.key)
            found.contents += len(slices)
            continue
        found.kept.add(digest(pack))
        names = (digest(each.sha256) for each in used)
        twice = [Double(alone[name], pack, one.modified) for name in names if name in alone]
        if any(each.is_older(each.alone) for each in twice):
            found.doubles += (each for each in twice if each.is_older(each.alone))
            found.holders.append(Remnant(pack, used))
        if slices is None or (digest(pack) in named and not _is_one_file(pack, slices, parts)):
            continue
        found.unused[pack] = (len(slices) - len(used), size - left)
        if 2 * left < size:
            found.thin.append(Remnant(pack, used))
        if is_small(left, shelf.chunk_bytes):
            found.small.append(Remnant(pack, used))
    return found


def _is_one_file(pack: str, slices: Sequence[Slice], parts: set[bytes]) -> bool:
    """Whether a pack is itself a content that somebody needs, only because that is all there is in it, and no chunk of a larger one."""
    return [one.sha256 for one in slices] == [pack] and digest(pack) not in parts


def _apart(
    found: Iterable[Found], is_free: Callable[[Found], bool], now: float
) -> tuple[list[str], list[str]]:
    """Of what is there, what may go and what stays."""
    going: list[str] = []
    staying: list[str] = []
    for one in found:
        (going if one.modified < now and is_free(one) else staying).append(one.key)
    return going, staying


def _stale_records(shelf: Shelf, wanted: frozenset[str], now: float) -> list[str]:
    """Records of sources whose listings aren't wanted. Long ones are read one after another."""

    def listing(one: Found) -> object:
        return shelf.listing_of(one.key)

    found = [one for one in shelf.objects.list(keys.FINGERPRINTS) if one.modified < now]
    short = [one for one in found if one.size < _LONG_BYTES]
    long = [one for one in found if one.size >= _LONG_BYTES]
    return [
        one.key
        for some, most in ((short, 2 * _FEW), (long, 1))
        for one, its in in_turn(listing, some, most)
        if its not in wanted
    ]


def _named(shelf: Shelf, listings: Set[str], kept: Iterable[Need]) -> tuple[set[bytes], set[bytes]]:
    """The contents that listings name, and the chunks of them. StorageError where one that is kept is missing or damaged."""
    users = {listing_id: need for need in kept for listing_id in need.listings}
    url = f"{shelf.objects.url}/"

    def read(listing_id: str) -> Listing | None:
        try:
            listing = shelf.read_listing(listing_id)
        except StorageError as error:
            if error.code != DAMAGED or listing_id not in users:
                raise
            raise not_known(users[listing_id], error.summary, url) from None
        if listing is None and listing_id in users:
            raise not_known(users[listing_id], f"{url}{keys.listing(listing_id)} is missing", url)
        return listing

    found: set[bytes] = set()
    parts: set[bytes] = set()
    for _, listing in in_turn(read, listings | users.keys(), _FEW):
        for file in listing.files if listing else ():
            found.add(digest(file.sha256))
            parts.update(map(digest, file.chunks))
    return found, parts


def digest(name: str) -> bytes:
    """A content's name in half its size, as there may be millions; what is no digest is as it is, and nobody names it."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return name.encode()
