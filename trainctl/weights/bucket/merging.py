"""Which packs are put together anew, and with which others. DESIGN.md, "Collection". Nothing is written here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from trainctl.node.content.digests import Digests
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import Slice
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.needs import Need

SEVERAL = 4
"""So many small packs become one: fewer of them cost less than reading and putting them does."""
_FEW = 4
"""Listings in memory at a time."""
_FILES_AT_ONCE = 10_000

User = tuple[str, str]
"""A project of a state, by lineage and name."""


@dataclass(frozen=True)
class Remnant:
    """What is used of a pack: those slices stay, in another pack. Only their ``places`` among the pack's are remembered."""

    pack: str
    places: array[int]
    size: int
    """Bytes that are used."""

    @classmethod
    def of(cls, pack: str, slices: Sequence[Slice], places: Iterable[int]) -> Remnant:
        """Those of a pack's slices."""
        its = array("I", places)
        return cls(pack, its, sum(slices[one].length for one in its))

    def used(self, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """Those of all that are in the pack."""
        return tuple(slices[one] for one in self.places)

    def is_small(self, chunk_bytes: int) -> bool:
        """Whether it is worth putting together with others: several times as much has room in a pack of at most a chunk."""
        return self.size < chunk_bytes // 4 and len(self.places) < packs.MOST_FILES // 4


class Double(NamedTuple):
    """A small file that is an object of its own, and in a pack that was put later, too: that many Unix seconds, by the bucket's clock."""

    alone: Found
    pack: str
    since: float

    def is_older(self, found: Found) -> bool:
        """Whether the object is older than the pack, and not put again since; clocks of buckets may tell whole seconds."""
        return int(found.modified) < int(self.since)


class Alone:
    """Small files that are objects of their own, by name, on the disk."""

    def __init__(self, found: Iterable[Found]) -> None:
        self._map = DiskMap()
        self._map.update((keys.stem(one.key), f"{one.size} {one.modified!r}") for one in found)
        self._is_empty = len(self._map) == 0

    def find(self, names: Iterable[str]) -> Iterator[Found]:
        """Those of these."""
        for name, text in ({} if self._is_empty else self._map.find(names)).items():
            size, modified = text.split()
            yield Found(keys.blob(name), int(size), float(modified))


class Holder(NamedTuple):
    """A pack that was put at that time, and has small files that are objects of their own, too."""

    remnant: Remnant
    since: float


def batches(
    shelf: Shelf, kept: Sequence[Need], thin: Sequence[Remnant], small: Sequence[Remnant]
) -> list[tuple[Remnant, ...]]:
    """Packs that become one: ``small`` ones that are used by the same projects, and each of the ``thin`` that is left then alone."""
    merged = list(_merged(shelf, kept, small)) if len(small) >= SEVERAL else []
    done = {one.pack for batch in merged for one in batch}
    return [*merged, *((one,) for one in thin if one.pack not in done)]


def doubles(
    shelf: Shelf, kept: Sequence[Need], alone: Alone, holders: Sequence[Holder]
) -> Iterator[Double]:
    """Those that need not be objects of their own: who uses one uses everything in the pack, too, as a link to that opens all of it.

    Each of them with the pack that has it, or with each of these.
    """
    if not holders:
        return
    users = _Users(shelf, kept, [one.remnant for one in holders])
    since = {one.remnant.pack: one.since for one in holders}
    for remnant, used in _used(shelf, (one.remnant for one in holders)):
        its = users.of(one.sha256 for one in used)
        common = frozenset[User].intersection(*its.values()) if its else frozenset()
        for one in alone.find(its):
            double = Double(one, remnant.pack, since[remnant.pack])
            who = its[keys.stem(one.key)]
            if double.is_older(one) and who and who <= common:
                yield double


def _merged(
    shelf: Shelf, kept: Sequence[Need], small: Sequence[Remnant]
) -> Iterator[tuple[Remnant, ...]]:
    users = _Users(shelf, kept, small)
    groups: dict[frozenset[User], list[Remnant]] = {}
    for remnant, used in _used(shelf, small):
        its = set(users.of(one.sha256 for one in used).values())
        if its and all(its):  # one that holds what no project names stays as it is
            groups.setdefault(frozenset[User]().union(*its), []).append(remnant)
    for group in groups.values():
        if len(group) >= SEVERAL:
            yield from (some for some in _filled(group, shelf.chunk_bytes) if len(some) > 1)


def _filled(group: Sequence[Remnant], most_bytes: int) -> Iterator[tuple[Remnant, ...]]:
    """The packs of a group in turn, as many as fit into one."""
    some: list[Remnant] = []
    files = size = 0
    for one in group:
        if some and (size + one.size > most_bytes or files + len(one.places) > packs.MOST_FILES):
            yield tuple(some)
            some, files, size = [], 0, 0
        some.append(one)
        files += len(one.places)
        size += one.size
    yield tuple(some)


def _used(shelf: Shelf, remnants: Iterable[Remnant]) -> Iterator[tuple[Remnant, tuple[Slice, ...]]]:
    """What of each pack is used; slices are read again, as there may be millions in all. One that has gone meanwhile is left out."""
    for one, slices in packs.loaded(shelf.objects, remnants, attrgetter("pack")):
        if slices is not None:
            yield one, one.used(slices)


class _Users:
    """Of contents in these packs the projects that name them.

    A link to a pack opens all of it. So it is asked of the listings, and not of hints, which may be wrong.
    """

    def __init__(self, shelf: Shelf, kept: Sequence[Need], remnants: Sequence[Remnant]) -> None:
        self._together: list[frozenset[User]] = [frozenset()]
        """Which projects name something together: few, however many the contents are."""
        self._of_content = DiskMap()
        likely = Digests(one.sha256 for _, used in _used(shelf, remnants) for one in used)
        of_listing = _users_of_listings(kept)
        for name, listing in in_turn(shelf.read_listing, of_listing, _FEW):
            names = (file.sha256 for file in (listing.files if listing else ()))
            named = (one for one in names if one in likely)
            while some := set(islice(named, _FILES_AT_ONCE)):
                self._add(some, of_listing[name])

    def of(self, contents: Iterable[str]) -> Mapping[str, frozenset[User]]:
        """Those of each."""
        wanted = list(contents)
        found = self._of_content.find(wanted)
        return {one: self._together[int(found.get(one, 0))] for one in wanted}

    def _add(self, contents: set[str], users: frozenset[User]) -> None:
        self._of_content.update(
            (one, str(self._number(its | users))) for one, its in self.of(contents).items()
        )

    def _number(self, users: frozenset[User]) -> int:
        if users not in self._together:
            self._together.append(users)
        return self._together.index(users)


def _users_of_listings(kept: Sequence[Need]) -> dict[str, frozenset[User]]:
    found: dict[str, frozenset[User]] = {}
    for need in kept:
        user = (str(need.record.get("lineage")), str(need.record.get("project")))
        for name in need.listings:
            found[name] = found.get(name, frozenset()) | {user}
    return found
