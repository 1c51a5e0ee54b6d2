"""Holds of runs and reservations of deliveries: protection from eviction."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set

from trainctl.base.filesystem.files import (
    list_names,
    modified_at,
    read_json,
    remove_tree,
    temporary_name,
    write_volatile,
)
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.system.processes import is_alive, process_record
from trainctl.node.cache.listings import ListingTrees, load_listing
from trainctl.node.runs.record import CREATED, ENDED, LOST, NodeRun
from trainctl.node.system.layout import Layout

UNSTARTED_SECONDS = 24 * 3600.0
"""How long a delivered listing waits for its run to start: other ranks of a gang may take that long."""


class CacheHolds:
    """Holds in one cache, which may be shared by several root directories."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def acquire(self, key: str, listing_id: str, lineage: str) -> None:
        """Record that a run needs a listing, before checking that it is complete."""
        write_volatile(
            self._layout.holds / key / listing_id,
            {"lineage": lineage, "root": str(self._layout.root), "holder": process_record()},
        )

    def release(self, key: str) -> None:
        """Release all holds of a run."""
        remove_tree(self._layout.holds / key)

    def release_listing(self, key: str, listing_id: str) -> None:
        """Release the hold of a failed delivery, unless the run exists."""
        if key and NodeRun(self._layout, key).spec is None:
            with contextlib.suppress(FileNotFoundError):
                (self._layout.holds / key / listing_id).unlink()

    def release_unstarted(self, lineage: str, runs: Set[str]) -> None:
        """Release a lineage's holds of runs that were never created here."""
        for key in set(list_names(self._layout.holds)) - runs:
            holds = self._of(key).values()
            mine = {"lineage": lineage, "root": str(self._layout.root)}
            directory = self._layout.holds / key
            if not holds and list_names(directory) and not self._is_young(key):
                remove_tree(directory)  # abandoned; writers create it again
            elif not holds:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            elif all(hold.get(name) == mine[name] for hold in holds for name in mine):
                self.release(key)

    def live_holds(self) -> Dict[str, List[str]]:
        """Map each listing in use to the keys of the live runs that hold it."""
        runs: Dict[str, List[str]] = {}
        for key in list_names(self._layout.holds):
            holds = self._of(key)
            if holds and self._is_live(key, holds):
                for listing in holds:
                    runs.setdefault(listing, []).append(key)
        return runs

    def is_needed(self, listing_id: str) -> bool:
        """Check whether a live run holds the listing."""
        keys = list_names(self._layout.holds)
        return any(
            listing_id in holds and self._is_live(key, holds)
            for key, holds in ((key, self._of(key)) for key in keys)
        )

    def describe(self, key: str) -> str:
        """Describe a run by its job and number, if known."""
        spec = self._spec(key)
        if spec is None:
            return "a run that has not started yet"
        return f"{spec['address']} run {spec['number']} ({spec['id']})"

    def project(self, key: str) -> Optional[str]:
        """Project of a run, if known."""
        spec = self._spec(key)
        return spec["project"] if spec else None

    def _spec(self, key: str) -> Optional[RunSpec]:
        specs = (NodeRun(Layout(root), key).spec for root in _roots(self._of(key)))
        return next(filter(None, specs), None)

    def _of(self, key: str) -> Dict[str, Mapping[str, Any]]:
        """Holds of a run by listing, also empty and truncated ones."""
        directory = self._layout.holds / key
        names = (name for name in list_names(directory) if not name.startswith("."))
        return {name: read_json(directory / name) or {} for name in names}

    def _is_live(self, key: str, holds: Mapping[str, Mapping[str, Any]]) -> bool:
        for root in _roots(holds):
            status = NodeRun(Layout(root), key).status()
            if status is not None and status["status"] in {*ENDED, LOST}:
                return False
            if status is not None and (status["supervised"] or status["status"] != CREATED):
                return True
        return any(is_alive(hold.get("holder")) for hold in holds.values()) or self._is_young(key)

    def _is_young(self, key: str) -> bool:
        names = list_names(self._layout.holds / key)
        newest = max((modified_at(self._layout.holds / key / name) for name in names), default=0.0)
        return time.time() - newest < UNSTARTED_SECONDS


def _roots(holds: Mapping[str, Mapping[str, Any]]) -> Set[str]:
    return {str(hold["root"]) for hold in holds.values() if hold.get("root")}


def hold_listing(run: NodeRun, listing_id: str) -> bool:
    """Hold a complete listing for a run's lifetime; False if it is not complete here.

    The hold is written before the completion marker is checked. A process that is evicting the listing holds its
    lock, sees the hold and restores the marker.
    """
    layout = run.layout
    spec = run.spec
    CacheHolds(layout).acquire(run.key, listing_id, spec["lineage"] if spec else "")
    trees = ListingTrees(layout)
    if trees.is_complete(listing_id):
        return True
    if not layout.locks.is_dir():
        return False
    with FileLease(layout.locks / f"listing-{listing_id}.lock"):
        trees.restore_marker(listing_id)
        return trees.is_complete(listing_id)


def space_lock(layout: Layout) -> FileLease:
    """Lock for reserving, measuring and removing.

    Its holder never waits for a listing's lock.
    """
    return FileLease(layout.locks / "room.lock")


@contextlib.contextmanager
def reserve_listing(layout: Layout, listing: Listing) -> Iterator[None]:
    """Reserve a listing's blobs before searching the cache for them."""
    path = layout.reservations / temporary_name(listing.id)[1:]
    size = sum(file.size for file in listing.unique_files)
    with space_lock(layout):
        write_volatile(path, {"holder": process_record(), "bytes": size, "listing": listing.id})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def reservations(layout: Layout) -> Iterator[ListedFile]:
    """Files of the reserved listings; blobs of several listings are repeated."""
    for listing_id in reserved_listings(layout):
        listing = load_listing(layout.listing(listing_id))
        if listing is not None:
            yield from listing.unique_files


def reserved_listings(layout: Layout) -> Dict[str, int]:
    """Bytes of the listings that live deliveries reserve, for each of them, by id."""
    sizes: Counter[str] = Counter()
    names = list_names(layout.reservations)
    for path in (layout.reservations / name for name in names if not name.startswith(".")):
        record = read_json(path)
        if record and is_alive(record.get("holder")):
            sizes[record["listing"]] += record["bytes"]
        else:  # the process is dead
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return sizes
