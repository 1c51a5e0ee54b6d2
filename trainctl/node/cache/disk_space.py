"""Disk space of the node's cache: evict listings until a delivery fits."""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from trainctl.base.filesystem.space import space_for_weights
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import Listing
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.base.units import format_bytes
from trainctl.errors import InsufficientSpace, NodeError, StorageError, TrainctlError
from trainctl.node.cache.eviction import CacheEntry, CacheEviction, CacheInventory
from trainctl.node.cache.holds import CacheHolds, reservations, reserved_listings, space_lock
from trainctl.node.cache.listings import ListingTrees
from trainctl.node.system.layout import Layout, check_sha256, layout_of


class CacheSpace(NamedTuple):
    """Bytes in a cache.

    ``used``: stored. ``coming``: reserved and not stored yet; ``unwritten``: the part of it without allocated disk
    blocks. ``held``: the part of ``used`` that can't be evicted. ``disk``: free for weights, None if unknown.
    """

    used: int
    coming: int
    unwritten: int
    held: int
    disk: Optional[int]

    def fits(self, limit: Optional[int], freed: int = 0) -> bool:
        """Check whether all reserved bytes fit in addition to the stored ones, after freeing some."""
        within = limit is None or self.used + self.coming - freed <= limit
        return within and (self.disk is None or self.unwritten <= self.disk + freed)


def make_space(layout: Layout, listing: Listing, limit: Optional[int], run: str) -> None:
    """Evict listings until all reservations fit the limit and the disk.

    The listing is reserved already, for the run with key ``run``. Listings that live runs hold or deliveries fetch
    are kept. Evicts nothing if that isn't enough: InsufficientSpace if the listing would fit once other runs have
    ended, else StorageError.
    """
    with space_lock(layout):
        reserved = sum(reserved_listings(layout).values())
        if limit is None and reserved <= (space_for_weights(str(layout.cache)) or 0):
            return  # fits even if none of it is stored: no need to measure
        survey = _SpaceSurvey(layout)
        space = survey.space()
        if space.fits(limit):
            return
        if space.fits(limit, freed=space.used - space.held):
            eviction = CacheEviction(layout, survey.listings)
            freed = eviction.remove_orphans()
            holds = CacheHolds(layout)
            for listing_in_cache in survey.listings:
                disk = space_for_weights(str(layout.cache))
                if space._replace(used=space.used - freed, disk=disk).fits(limit):
                    break
                freed += eviction.remove_listing(listing_in_cache, holds.is_needed) or 0
            else:
                eviction.remove_orphans()  # blobs of trees without a listing document
            space = survey.space()
        if not space.fits(limit):
            raise survey.error(limit, space, listing, run)


def cache_limit(request: Mapping[str, Any]) -> Optional[int]:
    """Largest size of the cache in bytes; None: limited by the disk only."""
    size = (request.get("cache") or {}).get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise NodeError(f"invalid cache size {size!r}: not a number of bytes")
    return size


class _SpaceSurvey:
    """Listings and holds at one point in time; measures sizes on each call."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._inventory = CacheInventory(layout)
        self.listings: Sequence[CacheEntry] = self._inventory.listings()
        self.holds: Mapping[str, List[str]] = CacheHolds(layout).live_holds()

    def space(self) -> CacheSpace:
        """Measure the cache."""
        reserved = {file.sha256: file.size for file in reservations(self._layout)}
        held, coming, unwritten = self._measure(reserved)
        held += self._inventory.present(_held_blobs(self.listings, self.holds).difference(reserved))
        disk = space_for_weights(str(self._layout.cache))
        return CacheSpace(self._inventory.used(), coming, unwritten, held, disk)

    def alone(self, listing: Listing, run: str) -> CacheSpace:
        """Sizes as if the cache held only this listing and those that the run holds."""
        own = (entry.unique_files for entry in self.listings if run in self.holds.get(entry.id, ()))
        needed = {file.sha256: file.size for file in chain(listing.unique_files, *own)}
        here, coming, unwritten = self._measure(needed)
        disk = space_for_weights(str(self._layout.cache))
        freed = self._inventory.used() - here
        return CacheSpace(here, coming, unwritten, here, None if disk is None else disk + freed)

    def error(
        self, limit: Optional[int], space: CacheSpace, listing: Listing, run: str
    ) -> TrainctlError:
        """Return the error for a listing that doesn't fit: whether it would, once other runs have ended."""
        holds = CacheHolds(self._layout)
        bounds = {}
        if limit is not None:
            bounds["the weights exceed the size of the node's cache"] = limit - space.held
        if space.disk is not None:
            disk = space.disk + space.used - space.held
            bounds["no space left for the weights on the node's disk"] = disk
        cause = min(bounds, key=lambda text: bounds[text])
        available = format_bytes(max(0, bounds[cause]))
        detail = f"Weights need {format_bytes(space.coming)} and may use {available}"
        if limit is not None:
            detail += f" (cache size: {format_bytes(limit)})"
        sizes: Dict[str, int] = {}
        for entry in (entry for entry in self.listings if entry.id != listing.id):
            for key in self.holds.get(entry.id, ()):
                sizes[key] = sizes.get(key, 0) + sum(file.size for file in entry.unique_files)
        names = {key: "this run" if key == run else holds.describe(key) for key in sorted(sizes)}
        held = ", ".join(f"{name} {format_bytes(sizes[key])}" for key, name in names.items())
        detail += f". {f'Used by live runs: {held}. ' if held else ''}Free disk space"
        detail += " or raise cache.node.size of the cluster." if limit is not None else "."
        if not self.alone(listing, run).fits(limit):
            return StorageError(f"{cause}: {self._layout.cache}", detail)
        others = [name for key, name in names.items() if key != run]
        users = f"{others[0]} is using the cache" if others else "others are being delivered"
        if len(others) > 1:
            users = f"{others[0]} and {len(others) - 1} more are using the cache"
        return InsufficientSpace(
            f"no space for the weights while {users}: {self._layout.cache}", detail
        )

    def _measure(self, sizes: Mapping[str, int]) -> Tuple[int, int, int]:
        """Bytes of blobs that are stored, missing, and without allocated blocks."""
        here = coming = unwritten = 0
        for sha256, size in sizes.items():
            present, allocated = self._inventory.sizes_of(sha256)
            here += present
            coming += max(0, size - present)
            unwritten += max(0, size - allocated)
        return here, coming, unwritten


def _held_blobs(listings: Sequence[CacheEntry], held: Mapping[str, List[str]]) -> Set[str]:
    return {
        file.sha256 for listing in listings if listing.id in held for file in listing.unique_files
    }


def cache_query(request: CacheQueryRequest) -> CacheQueryResponse:
    """Report which listings and blobs are stored, by name, and the space for more."""
    layout = layout_of(request)
    trees = ListingTrees(layout)
    listings = [check_sha256(listing, "listing") for listing in request.get("listings", [])]
    blobs = [check_sha256(blob, "blob") for blob in request.get("blobs", [])]
    response: CacheQueryResponse = {
        "trees": [listing for listing in listings if trees.is_complete(listing)],
        "blobs": [blob for blob in blobs if layout.files.has(blob)],
    }
    if request.get("room"):
        inventory, holds = CacheInventory(layout), CacheHolds(layout).live_holds()
        held = _held_blobs(inventory.listings(), holds) if holds else set()
        free, limit = space_for_weights(str(layout.cache)), cache_limit(request)
        bounds = [] if free is None else [free + inventory.used()]
        most = min([*bounds, *([] if limit is None else [limit])], default=None)
        response["room"] = None if most is None else max(0, most - inventory.present(held))
        response["most"] = most
        response["leases"] = sorted(holds)
        response["leased"] = [blob for blob in blobs if blob in held]
    if request.get("shared"):
        from trainctl.node.transfer.shared_cache import SharedCache  # slow to import

        shared = SharedCache(request["shared"]).stored(listings)
        response["shared"] = [blob for blob in blobs if blob in shared]
    return response
