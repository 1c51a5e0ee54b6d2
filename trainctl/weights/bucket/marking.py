"""What of a bucket nobody needs any more, and which packs are worth putting together again. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from trainctl.base.listing import Listing
from trainctl.base.packed import Arriving, packed
from trainctl.errors import StorageError
from trainctl.node.content.digests import Digests
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.merging import Alone, Double, Holder, Remnant, batches, doubles
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.spread import spread
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.keeping import not_known
from trainctl.weights.mirror.layout import DAMAGED
from trainctl.weights.mirror.needs import Need

_FEW = 4
"""Listings and records may be long."""
_LONG_BYTES = 2**20


@dataclass(frozen=True)
class Mark:
    """What may go, in the order in which it goes; ``batches`` are packs that become one, ``doubles`` small files that are in packs, too. ``contents`` and ``bytes`` count what goes, from these packs too; ``lying`` are the bytes of all that is there."""

    listings: Sequence[str] = ()
    records: Sequence[str] = ()
    blobs: Sequence[str] = ()
    batches: Sequence[tuple[Remnant, ...]] = ()
    doubles: Sequence[Double] = ()
    contents: int = 0
    bytes: int = 0
    lying: int = 0

    def __bool__(self) -> bool:
        return bool(self.listings or self.records or self.blobs or self.batches or self.doubles)


@dataclass(frozen=True)
class _Named:
    """What is named: as a file that is ``listed``; or as a chunk of one, or by a mark, and is ``needed`` as an object then."""

    listed: DiskSet
    needed: DiskSet

    def __contains__(self, name: bytes) -> bool:
        return name in self.listed or name in self.needed


@dataclass
class _Packs:
    """What becomes of packs. ``unused`` are contents and bytes, of each that may be put together anew."""

    kept: set[bytes] = field(default_factory=set)
    going: list[str] = field(default_factory=list)
    thin: list[Remnant] = field(default_factory=list)
    small: list[Remnant] = field(default_factory=list)
    unused: dict[str, tuple[int, int]] = field(default_factory=dict)
    contents: int = 0
    holders: list[Holder] = field(default_factory=list)


def mark(shelf: Shelf, kept: Sequence[Need], now: float) -> Mark:
    """What no kept listing names. What is younger than this collection stays, whosever it is, and what that names.

    However many files there are, no list of them is in memory, nor one of objects.
    """
    wanted = frozenset().union(*(need.listings for need in kept))
    unfinished = any(need.record.get("listing") is None for need in kept)

    def apart(prefix: str, free: Callable[[str], bool]) -> tuple[Sequence[str], Sequence[str]]:
        return _apart(shelf.objects.list(prefix), lambda one: free(_stem(one)), now)

    listings, staying = apart(keys.LISTINGS, lambda name: name not in wanted)
    hints, _ = apart(keys.PACKS, lambda name: name not in wanted)
    records = _stale_records(shelf, wanted, now)
    marks, left = apart(keys.PARTIAL, lambda _: not unfinished)
    listed, parts = _listed(shelf, {keys.stem(one) for one in staying}, kept)
    marked = DiskSet(digest(one.rpartition(".")[2]) for one in left)
    chunked, parted = apart(
        keys.CHUNKED, lambda name: digest(name) not in listed and digest(name) not in marked
    )
    alone = (one for one in parted if digest(keys.stem(one)) not in listed)
    for _, document in in_turn(shelf.document, alone):
        parts.add(map(digest, (document or {}).get("chunks") or ()))
    named = _Named(listed, DiskSet(chain(parts.all(), marked)))
    blobs = _blobs(shelf, named, now)
    found = _packs(shelf, named, marked, blobs.alone, now)
    together = batches(shelf, kept, found.thin, found.small)
    twice = _doubles(shelf, kept, blobs.alone, found)
    gone = _Gone({keys.stem(one) for one in found.going}, found.contents)
    going = _keys(gone.counted(blobs.loose, found.kept))
    unused = [found.unused[one.pack] for batch in together for one in batch]
    return Mark(
        listings,
        _keys(chain(hints, records, marks, chunked, found.going)),
        going,
        together,
        twice,
        gone.contents + len(twice) + sum(contents for contents, _ in unused),
        gone.size + sum(one.alone.size for one in twice) + sum(size for _, size in unused),
        blobs.lying,
    )


@dataclass
class _Blobs:
    """Objects: ``loose`` ones that nobody names, packs among them, and those that are small files, unless they are needed as such."""

    loose: Sequence[Found]
    alone: Alone
    lying: int


def _blobs(shelf: Shelf, named: _Named, now: float) -> _Blobs:
    loose = Arriving(_row, Found)
    lying = 0

    def small() -> Iterator[Found]:
        nonlocal lying
        for one in spread(shelf.objects, keys.BLOBS):
            lying += one.size
            name = digest(_stem(one))
            if one.modified >= now:
                continue
            if name not in named:
                loose.add((one,))
            elif shelf.is_small(one.size) and name not in named.needed:
                yield one

    alone = Alone(small())
    return _Blobs(loose.all(), alone, lying)


@dataclass
class _Gone:
    """Counts what goes: contents, those of packs among them, and bytes."""

    packs: set[str]
    contents: int
    size: int = 0

    def counted(self, loose: Iterable[Found], kept: Container[bytes]) -> Iterator[str]:
        """The keys of those objects that are no packs that stay."""
        for one in loose:
            name = _stem(one)
            if digest(name) not in kept:
                self.contents += name not in self.packs
                self.size += one.size
                yield one.key


def _packs(shelf: Shelf, named: _Named, marked: DiskSet, alone: Alone, now: float) -> _Packs:
    """Of packs those without anything that is named go; of thin ones less than half is named, of small ones little in all. What can't be read stays."""
    found = _Packs()

    for one, its in packs.loaded(shelf.objects, spread(shelf.objects, keys.SLICES), _stem):
        pack = _stem(one)
        is_free = one.modified < now and digest(pack) not in marked
        slices = its if is_free else None
        places = (at for at, each in enumerate(slices or ()) if digest(each.sha256) in named)
        left = Remnant.of(pack, slices or (), places)
        if slices is not None and not left.places:
            found.going.append(one.key)
            found.contents += len(slices)
            continue
        found.kept.add(digest(pack))
        names = (each.sha256 for each in left.used(slices or ()))
        if any(Double(each, pack, one.modified).is_older(each) for each in alone.find(names)):
            found.holders.append(Holder(left, one.modified))
        is_needed = digest(pack) in named
        if slices is None or (is_needed and not _is_one_file(pack, slices, named.needed)):
            continue
        size = sum(each.length for each in slices)
        found.unused[pack] = (len(slices) - len(left.places), size - left.size)
        if 2 * left.size < size:
            found.thin.append(left)
        if left.is_small(shelf.chunk_bytes):
            found.small.append(left)
    return found


def _doubles(shelf: Shelf, kept: Sequence[Need], alone: Alone, found: _Packs) -> Sequence[Double]:
    """Each once, unless it is a pack, too."""
    its = (
        one
        for one in doubles(shelf, kept, alone, found.holders)
        if digest(keys.stem(one.alone.key)) not in found.kept
    )
    met = Digests()
    return packed(
        (one for one in its if met.add(one.alone.key)),
        lambda one: (_row(one.alone), one.pack, one.since),
        lambda alone, pack, since: Double(Found(*alone), pack, since),
    )


def _is_one_file(pack: str, slices: Sequence[Slice], needed: DiskSet) -> bool:
    """Whether a pack is itself a content that somebody needs, only because that is all there is in it, and nobody needs it as an object."""
    return [one.sha256 for one in slices] == [pack] and digest(pack) not in needed


def _apart(
    found: Iterable[Found], is_free: Callable[[Found], bool], now: float
) -> tuple[Sequence[str], Sequence[str]]:
    """Of what is there, what may go and what stays."""
    going, staying = _arriving(), _arriving()
    for one in found:
        (going if one.modified < now and is_free(one) else staying).add((one.key,))
    return going.all(), staying.all()


def _arriving() -> Arriving[str]:
    return Arriving(lambda key: (key,), str)


def _keys(keys: Iterable[str]) -> Sequence[str]:
    return packed(keys, lambda key: (key,), str)


def _stem(one: Found) -> str:
    return keys.stem(one.key)


def _row(one: Found) -> tuple[str, int, float]:
    return one.key, one.size, one.modified


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


def _listed(
    shelf: Shelf, listings: Set[str], kept: Iterable[Need]
) -> tuple[DiskSet, Arriving[bytes]]:
    """The contents that listings name as files, and the chunks of them. StorageError where one that is kept is missing or damaged."""
    users = {listing_id: need for need in kept for listing_id in need.listings}
    url = f"{shelf.objects.url}/"
    parts: Arriving[bytes] = Arriving(lambda one: (one,), bytes)

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

    def files() -> Iterator[bytes]:
        for _, listing in in_turn(read, listings | users.keys(), _FEW):
            for file in listing.files if listing else ():
                parts.add(map(digest, file.chunks))
                yield digest(file.sha256)

    return DiskSet(files()), parts
