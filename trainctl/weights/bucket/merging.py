"""Which packs are put together anew, and with which others. DESIGN.md, "Collection". Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainctl.weights.bucket import keys
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.packs import MOST_FILES, Slice
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.needs import Need

SEVERAL = 4
"""So many small packs become one: fewer of them cost less than reading and putting them does."""
_FEW_LISTINGS = 4
"""In memory at a time: they may be long."""

User = tuple[str, str]
"""A project of a state, by lineage and name."""


@dataclass(frozen=True)
class Remnant:
    """What is used of a pack: those slices stay, in another pack."""

    pack: str
    used: tuple[Slice, ...]

    @property
    def size(self) -> int:
        """Bytes that are used."""
        return sum(one.length for one in self.used)


class Double(NamedTuple):
    """A small file that is an object of its own, and in a pack that was put later, too: that many Unix seconds, by the bucket's clock."""

    alone: Found
    pack: str
    since: float

    def is_older(self, found: Found) -> bool:
        """Whether the object is older than the pack, and not put again since; clocks of buckets may tell whole seconds."""
        return int(found.modified) < int(self.since)


def is_small(size: int, chunk_bytes: int) -> bool:
    """Whether a pack of which so much is used is worth putting together with others, of at most a chunk in all."""
    return size < chunk_bytes // 4


def batches(
    shelf: Shelf, kept: Sequence[Need], thin: Sequence[Remnant], small: Sequence[Remnant]
) -> list[tuple[Remnant, ...]]:
    """Packs that become one: ``small`` ones that are used by the same projects, and each of the ``thin`` that is left then alone."""
    merged = list(_merged(shelf, kept, small)) if len(small) >= SEVERAL else []
    done = {one.pack for batch in merged for one in batch}
    return [*merged, *((one,) for one in thin if one.pack not in done)]


def doubles(
    shelf: Shelf, kept: Sequence[Need], found: Sequence[Double], packs: Sequence[Remnant]
) -> tuple[Double, ...]:
    """Those that need not be objects of their own: who uses one uses everything in the pack, too, as a link to that opens all of it."""
    named = {one.pack for one in found}
    holding = [one for one in packs if one.pack in named]
    users = _users_of(shelf, kept, holding) if holding else {}
    common = {
        one.pack: set.intersection(*(users[each.sha256] for each in one.used)) for one in holding
    }

    def may_go(one: Double) -> bool:
        its = users[keys.stem(one.alone.key)]
        return bool(its) and its <= common[one.pack]

    return tuple({one.alone.key: one for one in found if may_go(one)}.values())


def _merged(
    shelf: Shelf, kept: Sequence[Need], small: Sequence[Remnant]
) -> Iterator[tuple[Remnant, ...]]:
    users = _users(shelf, kept, small)
    groups: dict[frozenset[User], list[Remnant]] = {}
    for one in small:
        if one.pack in users:
            groups.setdefault(users[one.pack], []).append(one)
    for group in groups.values():
        if len(group) >= SEVERAL:
            yield from (some for some in _filled(group, shelf.chunk_bytes) if len(some) > 1)


def _filled(group: Sequence[Remnant], most_bytes: int) -> Iterator[tuple[Remnant, ...]]:
    """The packs of a group in turn, as many as fit into one."""
    some: list[Remnant] = []
    files = size = 0
    for one in group:
        if some and (size + one.size > most_bytes or files + len(one.used) > MOST_FILES):
            yield tuple(some)
            some, files, size = [], 0, 0
        some.append(one)
        files += len(one.used)
        size += one.size
    yield tuple(some)


def _users(
    shelf: Shelf, kept: Sequence[Need], small: Sequence[Remnant]
) -> Mapping[str, frozenset[User]]:
    """Of each pack the projects that name anything in it; nothing of one that holds what none of them names."""
    of_content = _users_of(shelf, kept, small)
    found = {}
    for remnant in small:
        users = [of_content[each.sha256] for each in remnant.used]
        if all(users):
            found[remnant.pack] = frozenset(user for some in users for user in some)
    return found


def _users_of(shelf: Shelf, kept: Sequence[Need], packs: Sequence[Remnant]) -> dict[str, set[User]]:
    """Of each content in these packs the projects that name it.

    A link to a pack opens all of it. So it is asked of the listings, and not of hints, which may be wrong.
    """
    of_listing: dict[str, set[User]] = {}
    for need in kept:
        user = (str(need.record.get("lineage")), str(need.record.get("project")))
        for name in need.listings:
            of_listing.setdefault(name, set()).add(user)
    of_content: dict[str, set[User]] = {each.sha256: set() for one in packs for each in one.used}
    for name, listing in in_turn(shelf.read_listing, of_listing, _FEW_LISTINGS):
        for file in listing.files if listing else ():
            if file.sha256 in of_content:
                of_content[file.sha256] |= of_listing[name]
    return of_content
