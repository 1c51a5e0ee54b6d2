"""What of a bucket nobody needs any more, and which packs are worth putting together again. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.shelf import Shelf, in_turn
from trainctl.weights.mirror.needs import Need

_FEW = 4
"""Listings and records may be long."""
_LONG_BYTES = 2**20


@dataclass(frozen=True)
class Thin:
    """A pack of which less than half is used: those slices stay, in another pack."""

    pack: str
    used: tuple[Slice, ...]


@dataclass(frozen=True)
class Mark:
    """What may go, in the order in which it goes. ``contents`` and ``bytes`` count what goes, from thin packs too."""

    listings: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    thin: tuple[Thin, ...] = ()
    contents: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.listings or self.records or self.blobs or self.thin)


@dataclass
class _Packs:
    """What becomes of packs."""

    kept: set[bytes] = field(default_factory=set)
    going: list[str] = field(default_factory=list)
    thin: list[Thin] = field(default_factory=list)
    contents: int = 0
    bytes: int = 0


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
    listed = _named(shelf, map(keys.stem, staying))
    marked = {digest(one.rpartition(".")[2]) for one in left}
    chunked, parted = is_free(keys.CHUNKED, lambda name: digest(name) not in listed | marked)
    named = listed | marked
    for _, document in in_turn(
        shelf.document, (one for one in parted if digest(keys.stem(one)) not in listed)
    ):
        named.update(map(digest, (document or {}).get("chunks") or ()))
    found = _packs(shelf, named, marked, now)
    blobs = [
        one
        for one in shelf.objects.list(keys.BLOBS)
        if one.modified < now
        and digest(keys.stem(one.key)) not in named
        and digest(keys.stem(one.key)) not in found.kept
    ]
    going = {keys.stem(one) for one in found.going}
    alone = sum(keys.stem(one.key) not in going for one in blobs)
    return Mark(
        tuple(listings),
        (*hints, *records, *marks, *chunked, *found.going),
        tuple(one.key for one in blobs),
        tuple(found.thin),
        alone + found.contents,
        sum(one.size for one in blobs) + found.bytes,
    )


def _packs(shelf: Shelf, named: set[bytes], marked: set[bytes], now: float) -> _Packs:
    """Of packs those without anything that is named go, and those with little are thin; what can't be read stays."""
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
        if slices is not None and 2 * left < size and digest(pack) not in named:
            found.thin.append(Thin(pack, used))
            found.contents += len(slices) - len(used)
            found.bytes += size - left
    return found


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
        return (shelf.document(one.key) or {}).get("listing")

    found = [one for one in shelf.objects.list(keys.FINGERPRINTS) if one.modified < now]
    short = [one for one in found if one.size < _LONG_BYTES]
    long = [one for one in found if one.size >= _LONG_BYTES]
    return [
        one.key
        for some, most in ((short, 2 * _FEW), (long, 1))
        for one, its in in_turn(listing, some, most)
        if its not in wanted
    ]


def _named(shelf: Shelf, listings: Iterable[str]) -> set[bytes]:
    """The contents, and the chunks of them, that listings name."""
    found: set[bytes] = set()
    for _, listing in in_turn(shelf.read_listing, listings, _FEW):
        for file in listing.files if listing else ():
            found.add(digest(file.sha256))
            found.update(map(digest, file.chunks))
    return found


def digest(name: str) -> bytes:
    """A content's name in half its size, as there may be millions; what is no digest is as it is, and nobody names it."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return name.encode()
