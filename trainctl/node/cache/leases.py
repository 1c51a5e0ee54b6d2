"""What must stay in a node's cache: listings that runs need, by leases, and those that deliveries fetch, by reservations."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
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
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.system.processes import is_alive, process_record
from trainctl.node.cache.listings import load_listing
from trainctl.node.cache.trees import ListingTrees
from trainctl.node.runs.record import CREATED, ENDED, LOST, NodeRun
from trainctl.node.system.layout import Layout

UNSTARTED_SECONDS = 24 * 3600.0
"""How long a delivery waits for its run to start, when nobody is at it: others of a gang may take that long."""


class CacheLeases:
    """The leases in one cache, which runs under several ROOTs may share."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def take(self, key: str, listing_id: str, lineage: str) -> None:
        """Say that a run needs a listing, before the listing's seal is looked at."""
        write_volatile(
            self._layout.leases / key / listing_id,
            {"lineage": lineage, "root": str(self._layout.root), "holder": process_record()},
        )

    def release(self, key: str) -> None:
        """Drop the leases of a run."""
        remove_tree(self._layout.leases / key)

    def release_listing(self, key: str, listing_id: str) -> None:
        """Drop the lease of a listing that could not be delivered, unless the run is there and may be using it."""
        if key and NodeRun(self._layout, key).spec is None:
            with contextlib.suppress(FileNotFoundError):
                (self._layout.leases / key / listing_id).unlink()

    def release_unstarted(self, lineage: str, runs: Set[str]) -> None:
        """Drop the leases that a lineage took for runs which never came to be under this ROOT."""
        for key in set(list_names(self._layout.leases)) - runs:
            leases = self._of(key).values()
            mine = {"lineage": lineage, "root": str(self._layout.root)}
            if not leases:
                self._sweep(key)
            elif all(lease.get(name) == mine[name] for lease in leases for name in mine):
                self.release(key)

    def live(self) -> Dict[str, List[str]]:
        """Of each listing that is needed now, the runs that need it; what is stale is not there."""
        found: Dict[str, List[str]] = {}
        for key in list_names(self._layout.leases):
            leases = self._of(key)
            if leases and self._is_live(key, leases):
                for listing in leases:
                    found.setdefault(listing, []).append(key)
        return found

    def need(self, listing_id: str) -> bool:
        """Whether some live run needs the listing."""
        keys = list_names(self._layout.leases)
        return any(
            listing_id in leases and self._is_live(key, leases)
            for key, leases in ((key, self._of(key)) for key in keys)
        )

    def describe(self, key: str) -> str:
        """A run for people: its job and number where they are known."""
        spec = self._spec(key)
        if spec is None:
            return "a run that has not begun yet"
        return f"{spec['address']} run {spec['number']} ({spec['id']})"

    def project(self, key: str) -> Optional[str]:
        """Whose run it is, where that is known."""
        spec = self._spec(key)
        return spec["project"] if spec else None

    def _spec(self, key: str) -> Optional[RunSpec]:
        specs = (NodeRun(Layout(root), key).spec for root in self._roots(self._of(key)))
        return next(filter(None, specs), None)

    def _sweep(self, key: str) -> None:
        """Remove a run's directory that holds no lease, with what killed writers left; one who is writing now makes it anew."""
        directory = self._layout.leases / key
        if list_names(directory) and not self._is_young(key):
            remove_tree(directory)
        with contextlib.suppress(OSError):
            directory.rmdir()

    def _of(self, key: str) -> Dict[str, Mapping[str, Any]]:
        """A run's leases by listing; one that is being written, or was cut by a crash, still counts."""
        directory = self._layout.leases / key
        names = (name for name in list_names(directory) if not name.startswith("."))
        return {name: read_json(directory / name) or {} for name in names}

    def _is_live(self, key: str, leases: Mapping[str, Mapping[str, Any]]) -> bool:
        for root in self._roots(leases):
            status = NodeRun(Layout(root), key).status()  # of a lost run nothing is left after this
            if status is not None and status["status"] in {*ENDED, LOST}:
                return False
            if status is not None and (status["supervised"] or status["status"] != CREATED):
                return True
        return any(is_alive(lease.get("holder")) for lease in leases.values()) or self._is_young(
            key
        )

    def _roots(self, leases: Mapping[str, Mapping[str, Any]]) -> Set[str]:
        return {str(lease["root"]) for lease in leases.values() if lease.get("root")}

    def _is_young(self, key: str) -> bool:
        names = list_names(self._layout.leases / key)
        newest = max((modified_at(self._layout.leases / key / name) for name in names), default=0.0)
        return time.time() - newest < UNSTARTED_SECONDS


def hold_lease(run: NodeRun, listing_id: str) -> bool:
    """Have a run need a sealed listing for as long as it lives; False if it is not here.

    The lease comes first, then the look at the seal. Who is just about to evict the listing holds its lock, sees the
    lease, and puts the seal back.
    """
    layout = run.layout
    spec = run.spec
    CacheLeases(layout).take(run.key, listing_id, spec["lineage"] if spec else "")
    trees = ListingTrees(layout)
    if trees.is_complete(listing_id):
        return True
    if not layout.locks.is_dir():
        return False
    with FileLease(layout.locks / f"listing-{listing_id}.lock"):
        trees.restore_marker(listing_id)
        return trees.is_complete(listing_id)


def space_lock(layout: Layout) -> FileLease:
    """Held while a process reserves, measures or removes. A holder never waits for a listing's lock."""
    return FileLease(layout.locks / "room.lock")


@contextlib.contextmanager
def reserve_listing(layout: Layout, listing: Listing) -> Iterator[None]:
    """Reserve a listing's contents, before the cache is searched for them."""
    path = layout.reservations / temporary_name(listing.id)[1:]
    size = sum(file.size for file in listing.unique_files)
    with space_lock(layout):
        write_volatile(path, {"holder": process_record(), "bytes": size, "listing": listing.id})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def reserved_bytes(layout: Layout) -> int:
    """The sum of all reservations; content that several deliveries fetch counts for each."""
    return sum(_reservations(layout).values())


def reserved_listings(layout: Layout) -> Set[str]:
    """The ids of the listings that are reserved."""
    return {path.name.partition(".")[0] for path in _reservations(layout)}


def reservations(layout: Layout) -> Iterator[ListedFile]:
    """The contents that are reserved; one that several listings name several times."""
    for listing_id in reserved_listings(layout):
        listing = load_listing(layout.listing(listing_id))
        if listing is not None:
            yield from listing.unique_files


def _reservations(layout: Layout) -> Dict[Path, int]:
    """The reservations of live deliveries, with their bytes; those of dead processes are removed."""
    found = {}
    names = list_names(layout.reservations)
    for path in (layout.reservations / name for name in names if not name.startswith(".")):
        about = read_json(path)
        if about and is_alive(about.get("holder")):
            found[path] = int(about["bytes"])
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return found
