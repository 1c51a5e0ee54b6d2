"""Room in the node's cache: what was used longest ago goes until a delivery fits. See DESIGN.md, "Cache"."""

from __future__ import annotations

from itertools import chain
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from trainctl.base.failure import Failure, space_for_weights
from trainctl.base.listing import Listing
from trainctl.base.units import format_bytes
from trainctl.node.cache.eviction import CacheEviction
from trainctl.node.cache.inventory import CacheEntry, CacheInventory
from trainctl.node.cache.leases import CacheLeases, reservations, reserved_bytes, space_lock
from trainctl.node.system.layout import Layout


class CacheSpace(NamedTuple):
    """Bytes in a cache.

    ``used``: all that is there. ``coming``: what is reserved and not there yet; ``unwritten``: the part of it that the
    disk has set nothing aside for. ``held``: what of ``used`` can't go. ``disk``: free for weights, None if unknown.
    """

    used: int
    coming: int
    unwritten: int
    held: int
    disk: Optional[int]

    def fits(self, limit: Optional[int]) -> bool:
        """Whether all that is coming fits beside what is there."""
        return self._fits(limit, 0)

    def could_fit(self, limit: Optional[int]) -> bool:
        """Whether it would if everything that may go went."""
        return self._fits(limit, self.used - self.held)

    def _fits(self, limit: Optional[int], freed: int) -> bool:
        within = limit is None or self.used + self.coming - freed <= limit
        return within and (self.disk is None or self.unwritten <= self.disk + freed)


class AvailableSpace(NamedTuple):
    """Bytes that weights may take of a cache: ``now``, and at ``most``, once all runs have ended; None: no bound known."""

    now: Optional[int]
    most: Optional[int]


def make_space(layout: Layout, listing: Listing, limit: Optional[int], run: str) -> None:
    """Evict until what is reserved fits the limit and the disk. Where it can't, nothing goes: Failure, of kind ``room`` if it
    would fit once the others' runs have ended, else ``storage``.

    The listing is reserved already, for the run of that key. What live runs lease and what is being delivered stays.
    """
    with space_lock(layout):
        if limit is None and reserved_bytes(layout) <= (space_for_weights(str(layout.cache)) or 0):
            return  # even if nothing of it were here: no need to measure
        room = _SpaceSurvey(layout)
        space = room.space()
        if space.fits(limit):
            return
        if space.could_fit(limit):
            _evict(layout, limit, room, space)
            space = room.space()
        if not space.fits(limit):
            raise _no_space_error(layout, limit, space, room, listing, run)


def cache_limit(request: Mapping[str, Any]) -> Optional[int]:
    """How many bytes the cache may hold; None: as many as the disk does."""
    size = (request.get("cache") or {}).get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Failure("request", f"cache size {size!r} is no number of bytes")
    return size


def _evict(layout: Layout, limit: Optional[int], room: _SpaceSurvey, space: CacheSpace) -> None:
    removal = CacheEviction(layout, room.listings)
    freed = removal.remove_orphans()
    leases = CacheLeases(layout)
    for listing in room.listings:
        now = space._replace(used=space.used - freed, disk=space_for_weights(str(layout.cache)))
        if now.fits(limit):
            return
        freed += removal.listing(listing, leases.need) or 0
    removal.remove_orphans()  # contents of trees that nobody knew any more


class _SpaceSurvey:
    """One look at what is held and by whom, and measuring anew after it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._inventory = CacheInventory(layout)
        self.listings: Sequence[CacheEntry] = self._inventory.listings()
        self._leased: Mapping[str, List[str]] = CacheLeases(layout).live()

    def space(self) -> CacheSpace:
        """The present figures."""
        reserved = {file.sha256: file.size for file in reservations(self._layout)}
        held, coming, unwritten = self._measured(reserved)
        leased = set(_leased(self.listings, self._leased))
        held += self._inventory.present(leased.difference(reserved))
        disk = space_for_weights(str(self._layout.cache))
        return CacheSpace(self._inventory.used(), coming, unwritten, held, disk)

    def alone(self, listing: Listing, run: str) -> CacheSpace:
        """The figures as they would be if only a run's own listings were here, and this one came."""
        own = (kept.unique_files for kept in self.listings if run in self._leased.get(kept.id, ()))
        needed = {file.sha256: file.size for file in chain(listing.unique_files, *own)}
        here, coming, unwritten = self._measured(needed)
        disk = space_for_weights(str(self._layout.cache))
        freed = self._inventory.used() - here
        return CacheSpace(here, coming, unwritten, here, None if disk is None else disk + freed)

    def _measured(self, sizes: Mapping[str, int]) -> Tuple[int, int, int]:
        """Bytes of contents that are here, that are not, and for which the disk has set nothing aside."""
        here = coming = unwritten = 0
        for sha256, size in sizes.items():
            present, set_aside = self._inventory.sizes_of(sha256)
            here += present
            coming += max(0, size - present)
            unwritten += max(0, size - set_aside)
        return here, coming, unwritten

    def holders(self, wanted: str) -> Dict[str, int]:
        """The runs that lease something here besides what is wanted, and how many bytes each."""
        found: Dict[str, int] = {}
        for listing in (listing for listing in self.listings if listing.id != wanted):
            for key in self._leased.get(listing.id, ()):
                found[key] = found.get(key, 0) + sum(file.size for file in listing.unique_files)
        return found


def available_space(layout: Layout, limit: Optional[int], leased: Iterable[str]) -> AvailableSpace:
    """What weights may take if everything that may go went, beside ``leased_blobs`` and without them."""
    inventory = CacheInventory(layout)
    stays = inventory.present(set(leased))
    free = space_for_weights(str(layout.cache))
    disk = None if free is None else free + inventory.used()
    most = min((one for one in (disk, limit) if one is not None), default=None)
    return AvailableSpace(None if most is None else max(0, most - stays), most)


def leased_blobs(layout: Layout) -> Iterator[str]:
    """What live runs have of a cache; a content of several listings several times."""
    leased = CacheLeases(layout).live()
    return _leased(CacheInventory(layout).listings(), leased) if leased else iter(())


def _leased(listings: Sequence[CacheEntry], leased: Mapping[str, List[str]]) -> Iterator[str]:
    return (
        file.sha256 for listing in listings if listing.id in leased for file in listing.unique_files
    )


def _no_space_error(
    layout: Layout,
    limit: Optional[int],
    space: CacheSpace,
    room: _SpaceSurvey,
    listing: Listing,
    run: str,
) -> Failure:
    leases = CacheLeases(layout)
    bounds = {}
    if limit is not None:
        bounds["the weights are too much for the node's cache"] = limit - space.held
    if space.disk is not None:
        disk = space.disk + space.used - space.held
        bounds["no space left for the weights on the node's disk"] = disk
    what = min(bounds, key=lambda one: bounds[one])
    may = f"Weights need {format_bytes(space.coming)} there and may take {format_bytes(max(0, bounds[what]))}"
    rule = f", as the cache may hold {format_bytes(limit)}" if limit is not None else ""
    holders = sorted(room.holders(listing.id).items())
    names = {key: "this run" if key == run else leases.describe(key) for key, _ in holders}
    held = ", ".join(f"{names[key]} {format_bytes(size)}" for key, size in holders)
    detail = f"{may}{rule}. {f'Live runs need {held} of it. ' if held else ''}Free some space"
    detail += ", or raise cache.node.size of the cluster." if limit is not None else "."
    if room.alone(listing, run).fits(limit):
        others = [name for key, name in names.items() if key != run]
        return Failure(
            "room", f"no room for the weights beside {_run_names(others)}: {layout.cache}", detail
        )
    return Failure("storage", f"{what}: {layout.cache}", detail)


def _run_names(runs: Sequence[str]) -> str:
    """Those in whose way something is: the first by name, the others by number."""
    if not runs:
        return "what is being delivered"
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"
