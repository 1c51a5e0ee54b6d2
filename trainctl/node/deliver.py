"""Delivery: making a listing present on this node. The order of steps is invariant 7 of DESIGN.md."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping

from trainctl.node import layout as names
from trainctl.node.blobs import Blobs
from trainctl.node.failure import Failure, weights_room
from trainctl.node.files import make_directory
from trainctl.node.layout import Layout
from trainctl.node.listing import File, Listing, parse
from trainctl.node.lock import Lock
from trainctl.node.mount import private_mounts
from trainctl.node.origin import Origin, open_origin
from trainctl.node.references import References
from trainctl.node.trees import FEW, Trees

Emit = Callable[[Dict[str, Any]], None]
_ATTEMPTS = 3
_EVENT_SECONDS = 0.2


def deliver(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Make the listing's tree whole and sealed here; see the house's DESIGN.md for request and result."""
    began = time.monotonic()
    layout = Layout(request["root"])
    listing = parse(request["listing"])
    for directory in (layout.partial, layout.locks, layout.trees, layout.seals):
        make_directory(directory)
    lineage = names.name(request["lineage"], "lineage")
    references = References(layout)
    references.refer(lineage, listing, str(request.get("owner", "")))
    if request.get("lease"):
        references.lease(names.name(request["lease"], "lease"), listing.id, lineage)
    fetched = _deliver(layout, listing, request, emit)
    return {
        "listing": listing.id,
        "tree": str(layout.tree(listing.id)),
        "bytes_node": listing.size - fetched,
        "bytes_origin": fetched,
        "seconds": round(time.monotonic() - began, 6),
    }


def _deliver(layout: Layout, listing: Listing, request: Mapping[str, Any], emit: Emit) -> int:
    """Bytes that had to come from the origin."""
    trees = Trees(layout)
    large = len(listing.files) > FEW
    thoroughly = bool(request.get("verify")) or (
        large and not private_mounts(layout.partial).possible
    )
    if trees.sound(listing, thoroughly=thoroughly):
        return 0
    with Lock(layout.locks, f"listing-{listing.id}"):
        if trees.sound(listing, thoroughly=thoroughly):
            return 0
        origin = open_origin(request["origin"])
        try:
            return _Filling(layout, listing, origin, emit).run(str(request.get("source", "")))
        finally:
            origin.close()


class _Filling:
    """One delivery that has work to do."""

    def __init__(self, layout: Layout, listing: Listing, origin: Origin, emit: Emit) -> None:
        self._layout = layout
        self._listing = listing
        self._origin = origin
        self._emit = emit
        self._blobs = Blobs(layout)
        self._done = 0
        self._spoken = 0.0

    def run(self, source: str) -> int:
        """Fetch what is missing, then build and seal the tree."""
        fetched = 0
        for attempt in range(1, _ATTEMPTS + 1):
            fetched += self._fetch_missing()
            try:
                Trees(self._layout).build(self._listing, source)
            except FileNotFoundError:  # a collector took a blob between looking and linking
                if attempt == _ATTEMPTS:
                    raise
            else:
                break
        return fetched

    def _fetch_missing(self) -> int:
        contents = self._listing.contents.values()
        missing = [file for file in contents if not self._blobs.whole(file)]
        self._check_space(missing)
        total = sum(file.size for file in contents)
        self._done = total - sum(file.size for file in missing)
        fetched: List[File] = []
        small: List[File] = []
        for count, file in enumerate(missing, len(contents) - len(missing) + 1):
            if self._blobs.fetch(file, self._origin, self._progress(total, count)):
                fetched.append(file)
                if len(file.pieces) == 1:
                    small.append(file)
        self._blobs.commit(small)
        return sum(file.size for file in fetched)

    def _check_space(self, missing: List[File]) -> None:
        needed = sum(file.size for file in missing)
        for file in missing:
            part = self._layout.part(file.sha256)
            needed -= part.stat().st_blocks * 512 if part.exists() else 0
        room = weights_room(str(self._layout.cache))
        if needed > 0 and room is not None and needed > room:
            raise Failure(
                "storage",
                f"no space left for the weights on the node's disk: {self._layout.cache}",
                f"Weights need {needed / 1e6:.1f} MB there and may take {room / 1e6:.1f} MB. Free some space, then apply again.",
            )

    def _progress(self, total: int, count: int) -> Callable[[int], None]:
        def report(length: int) -> None:
            self._done += length
            now = time.monotonic()
            if now - self._spoken >= _EVENT_SECONDS or self._done >= total:
                self._spoken = now
                self._emit({"done": self._done, "total": total, "files": count})

        return report


def cache_query(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Which of the listings and blobs are whole here, going by seals and names."""
    layout = Layout(request["root"])
    trees = Trees(layout)
    return {
        "trees": [
            one for one in request.get("listings", []) if trees.sealed(names.sha256(one, "listing"))
        ],
        "blobs": [
            one
            for one in request.get("blobs", [])
            if layout.blob(names.sha256(one, "blob")).is_file()
        ],
    }
