"""Small files put together into packs, and where each of them is found then. DESIGN.md, "Packs"."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from operator import attrgetter
from typing import NamedTuple, TypeVar

from trainctl.base.json import canonical
from trainctl.node.content.pack_index import Row, index_bytes, is_right, rows_of
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.objects import Objects
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.mirror.in_turn import in_turn

MOST_FILES = 4096
"""In one pack: as many as fill it with 4 KiB each."""
_READ_AT_LEAST = 100
_PACKS_AT_ONCE = 4
T = TypeVar("T")


class Slice(NamedTuple):
    """A content in a pack: its sha256, and which of the pack's bytes it is."""

    sha256: str
    offset: int
    length: int


class Place(NamedTuple):
    """Where a content is found: from that byte of that pack on."""

    pack: str
    offset: int
    length: int


class Pack(NamedTuple):
    """A pack: the sha256 of its bytes, which is its name, and what is in it."""

    sha256: str
    data: bytes
    slices: tuple[Slice, ...]


def planned(files: Iterable[tuple[T, int]], most_bytes: int) -> Iterator[list[T]]:
    """Files and their sizes, in order, as groups that each are a pack of at most so many bytes."""
    group: list[T] = []
    room = most_bytes
    for file, size in files:
        if group and (size > room or len(group) == MOST_FILES):
            yield group
            group, room = [], most_bytes
        group.append(file)
        room -= size
    if group:
        yield group


def put_together(contents: Mapping[str, bytes | bytearray]) -> Pack:
    """The pack of contents by their sha256, in that order."""
    slices: list[Slice] = []
    offset = 0
    for sha256, data in contents.items():
        slices.append(Slice(sha256, offset, len(data)))
        offset += len(data)
    data = b"".join(contents.values())
    return Pack(hashlib.sha256(data).hexdigest(), data, tuple(slices))


def put(objects: Objects, pack: Pack) -> None:
    """Have it there: its bytes, and then what is in it."""
    objects.put(keys.blob(pack.sha256), pack.data)
    objects.put(keys.slices(pack.sha256), to_bytes(pack.slices))


def to_bytes(slices: Iterable[Slice]) -> bytes:
    """The stored form, which is that of any pack's index."""
    return index_bytes(Row(bytes.fromhex(one.sha256), one.offset, one.length) for one in slices)


def from_bytes(data: bytes) -> tuple[Slice, ...]:
    """Read it, in the order of the pack; ValueError for what is none."""
    if not is_right(data):
        raise ValueError("it is no index of a pack")
    found = (Slice(row.digest.hex(), row.offset, row.length) for row in rows_of(data))
    return tuple(sorted(found, key=attrgetter("offset", "length")))


def load(objects: Objects, pack: str) -> tuple[Slice, ...] | None:
    """What is in a pack; None where nothing says so, or nothing that can be read."""
    data = objects.get(keys.slices(pack))
    try:
        return None if data is None else from_bytes(data)
    except ValueError:
        return None


def loaded(
    objects: Objects, packs: Iterable[T], name: Callable[[T], str] = str
) -> Iterator[tuple[T, tuple[Slice, ...] | None]]:
    """What is in each of many packs; ``name`` is its. In memory is what is in few."""
    return in_turn(lambda pack: load(objects, name(pack)), packs, _PACKS_AT_ONCE)


def find(objects: Objects, wanted: Set[str], packs: Collection[str]) -> dict[str, Place]:
    """Where the wanted contents are, as far as they are in these packs."""
    return {
        one.sha256: Place(pack, one.offset, one.length)
        for pack, slices in (loaded(objects, sorted(packs)) if wanted else ())
        for one in slices or ()
        if one.sha256 in wanted
    }


def find_there(objects: Objects, wanted: Set[str], packs: Collection[str]) -> dict[str, Place]:
    """The same, in packs that are there, too."""
    return there(objects, find(objects, wanted, packs))


def there(objects: Objects, places: Mapping[str, Place]) -> dict[str, Place]:
    """The places whose packs are there. Slices alone are what somebody put who slept for an hour, and was thought to be dead."""
    named = sorted({place.pack for place in places.values()})
    answers = at_once(lambda pack: objects.head(keys.blob(pack)) is not None, named)
    found = {pack for pack, is_there in zip(named, answers, strict=True) if is_there}
    return {one: place for one, place in places.items() if place.pack in found}


def newest(objects: Objects, wanted: int) -> list[str]:
    """Some packs that are worth looking through for so many contents: it must not cost more than to have these come again."""
    found = sorted(objects.list(keys.SLICES), key=attrgetter("modified"))
    return [keys.stem(one.key) for one in found[-max(wanted, _READ_AT_LEAST) :]]


def hinted(shelf: Shelf, listing_id: str) -> list[str]:
    """The packs in which a listing's small files are said to be."""
    found = shelf.hint(keys.packs(listing_id)).get("packs")
    return [str(one) for one in found] if isinstance(found, list) else []


def hint(packs: Iterable[str]) -> bytes:
    """The stored form of that."""
    return canonical({"version": 1, "packs": sorted(packs)})
