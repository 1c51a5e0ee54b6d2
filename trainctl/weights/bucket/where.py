"""Where contents of a bucket are, for those who read them from there by links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.packs import Place, Slice
from trainctl.weights.bucket.shelf import Shelf


class Where:
    """Remembers what it has read, of ``named`` contents or of all, on the disk; for one thread."""

    def __init__(self, shelf: Shelf, named: DiskMap | None = None) -> None:
        self._shelf = shelf
        self._named = named
        self._listings: set[str] = set()
        self._packs: set[str] = set()
        self._places = DiskMap()
        self._there: dict[str, bool] | None = None

    def of(self, listing_id: str, contents: Sequence[str], *, lost: bool) -> list[Place | None]:
        """The place in a pack of each of a listing's contents; None for one that is an object of its own.

        ``lost``: it isn't where it was, so all packs are looked through.
        """
        if lost:
            self._look_again()
        elif listing_id not in self._listings:
            self._listings.add(listing_id)
            self._read(packs.hinted(self._shelf, listing_id))
        found = {one: _place(text) for one, text in self._places.find(contents).items()}
        return [
            place if place and self._is_there(place) else None for place in map(found.get, contents)
        ]

    def _look_again(self) -> None:
        """Once more where a pack goes while it is read: what was in it is in another now, which may not have been listed yet."""
        for _ in range(2):
            listed = {keys.stem(one.key) for one in self._shelf.objects.list(keys.SLICES)}
            if not self._packs <= listed:  # what has gone may say where something was
                self._packs, self._places = set(), DiskMap()
            if self._read(listed):
                break
        self._there = {}

    def _read(self, wanted: Iterable[str]) -> bool:
        """Read what is in packs; whether all of them are there."""
        missing = sorted(set(wanted) - self._packs)
        complete = True
        for pack, slices in packs.loaded(self._shelf.objects, missing):
            complete = complete and slices is not None
            if slices is not None:
                self._packs.add(pack)
                self._places.update(self._texts(pack, slices))
        return complete

    def _texts(self, pack: str, slices: Sequence[Slice]) -> Iterator[tuple[str, str]]:
        """Where those of a pack's contents are that count."""
        named = self._named
        wanted = None if named is None else named.find(one.sha256 for one in slices)
        for one in slices:
            if wanted is None or one.sha256 in wanted:
                yield one.sha256, f"{pack} {one.offset} {one.length}"

    def _is_there(self, place: Place) -> bool:
        """Whether the pack is there, once that was doubted."""
        if self._there is None:
            return True
        if place.pack not in self._there:
            self._there[place.pack] = self._shelf.has_blob(place.pack)
        return self._there[place.pack]


def _place(text: str) -> Place:
    pack, offset, length = text.split()
    return Place(pack, int(offset), int(length))
