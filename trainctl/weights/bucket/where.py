"""Where contents of a bucket are, for those who read them from there by links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.packs import Place
from trainctl.weights.bucket.shelf import Shelf, at_once


class Where:
    """Remembers what it has read, of ``named`` contents or of all; for one thread."""

    def __init__(self, shelf: Shelf, named: Set[str] | None = None) -> None:
        self._shelf = shelf
        self._named = named
        self._listings: set[str] = set()
        self._packs: set[str] = set()
        self._places: dict[str, Place] = {}

    def of(self, listing_id: str, contents: Sequence[str], *, lost: bool) -> list[Place | None]:
        """The place in a pack of each of a listing's contents; None for one that is an object of its own.

        ``lost``: it isn't where it was, so all packs are looked through.
        """
        if lost:
            self._look_again()
        elif listing_id not in self._listings:
            self._listings.add(listing_id)
            self._read(packs.hinted(self._shelf, listing_id))
        return [self._places.get(one) for one in contents]

    def _look_again(self) -> None:
        """Once more where a pack goes while it is read: what was in it is in another now, which may not have been listed yet."""
        for _ in range(2):
            listed = {keys.stem(one.key) for one in self._shelf.objects.list(keys.SLICES)}
            self._packs &= listed
            there = self._places.items()
            self._places = {one: place for one, place in there if place.pack in listed}
            if self._read(listed):
                break
        self._places = packs.there(self._shelf.objects, self._places)

    def _read(self, wanted: Iterable[str]) -> bool:
        """Read what is in packs; whether all of them are there."""
        missing = sorted(set(wanted) - self._packs)
        loaded = at_once(lambda pack: packs.load(self._shelf.objects, pack), missing)
        for pack, slices in zip(missing, loaded, strict=True):
            if slices is not None:
                self._packs.add(pack)
                for one in slices:
                    if self._named is None or one.sha256 in self._named:
                        self._places[one.sha256] = Place(pack, one.offset, one.length)
        return None not in loaded
