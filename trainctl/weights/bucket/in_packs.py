"""Which packs contents are in, of a few that are likely and, where that isn't enough, of the newest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.objects import Objects


class InPacks:
    """For one thread. What was read of packs is remembered, on the disk."""

    def __init__(self, objects: Objects, likely: Collection[str]) -> None:
        self._objects = objects
        self._likely = likely
        self._read: set[str] = set()
        self._there: dict[str, bool] = {}
        self._pack_of = DiskMap()

    def known(self, contents: Iterable[str]) -> dict[str, str]:
        """The packs of contents, as far as the likely ones have them and are there: slices alone are what somebody put who slept."""
        self._look_into(self._likely)
        found = self._pack_of.find(contents)
        for pack in set(found.values()) - self._there.keys():
            self._there[pack] = self._objects.head(keys.blob(pack)) is not None
        return {one: pack for one, pack in found.items() if self._there[pack]}

    def find(self, contents: Set[str]) -> dict[str, str]:
        """The same; for what isn't in those, the newest are looked through, too."""
        if not contents:
            return {}
        found = self.known(contents)
        left = contents - found.keys()
        if left:
            self._look_into(packs.newest(self._objects, len(left)))
            found |= self.known(left)
        return found

    def _look_into(self, wanted: Iterable[str]) -> None:
        new = sorted(set(wanted) - self._read)
        self._read.update(new)
        for pack, slices in packs.loaded(self._objects, new):
            self._pack_of.update((one.sha256, pack) for one in slices or ())
