"""Verifying the node's cache: every byte is hashed again; what is wrong is repaired in place, or goes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from itertools import compress
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Iterable,
    List,
    Mapping,
    Optional,
    Tuple,
)

from trainctl.base.failure import Failure, from_os_error
from trainctl.base.files import make_directory
from trainctl.base.lock import Lock
from trainctl.base.protocol.weights import CacheAnswer, CacheRow, VerifyRequest
from trainctl.node.cache.deliver import Filling
from trainctl.node.cache.inventory import Inventory, Kept
from trainctl.node.cache.leases import Leases
from trainctl.node.cache.removal import Removal
from trainctl.node.cache.reservations import reserved, room_lock
from trainctl.node.cache.room import limit_of
from trainctl.node.cache.trees import Trees
from trainctl.node.content.blobs import Blobs
from trainctl.node.content.digests import Digests
from trainctl.node.content.listing import File, Listing
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.system.threads import for_each
from trainctl.node.transfer.sources import Sources, asking_of

if TYPE_CHECKING:
    from trainctl.base.protocol.asking import Asking

Emit = Callable[[Mapping[str, Any]], None]
_MOST_THREADS = 8
_EVENT_SECONDS = 0.2

WHOLE, REPAIRED, DROPPED, WRONG = "whole", "repaired", "dropped", "wrong"


def cache_verify(request: VerifyRequest, emit: Emit, caller: BinaryIO) -> CacheAnswer:
    """Hash every listing that is sealed or in use here; what is wrong is repaired from ``origin``, else dropped.

    It stays, as wrong, where a live run leases what can't be repaired. Contents that no listing names are removed.
    """
    layout = layout_of(request)
    asking = asking_of(request, caller, emit)
    emit = asking.tell if asking else emit
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    for directory in (layout.partial, layout.locks, layout.trees, layout.seals):
        make_directory(directory)
    leased = Leases(layout).live()
    listings = [
        kept
        for kept in Inventory(layout).listings()
        if kept.sealed or (kept.id in leased and layout.tree(kept.id).is_dir())
    ]
    verifying = _Verifying(layout, request, emit, asking, listings)
    rows = [verifying.listing(kept) for kept in listings]
    with room_lock(layout):
        freed = Removal(layout, Inventory(layout).listings()).strays()
    return {"listings": rows, "bytes": verifying.hashed, "freed": freed}


class _Verifying:
    """One pass over a cache. A content that several listings share is hashed once."""

    def __init__(
        self,
        layout: Layout,
        request: Mapping[str, Any],
        emit: Emit,
        asking: Optional[Asking],
        listings: List[Kept],
    ) -> None:
        self._layout = layout
        self._request = request
        self._emit = emit
        self._asking = asking
        self._blobs = Blobs(layout)
        self._trees = Trees(layout)
        self._good = Digests()
        named = Digests()
        contents = (file for kept in listings for file in kept.contents)
        self._total = sum(file.size for file in contents if named.add(file.sha256))
        self._lock = threading.Lock()
        self._right = 0
        self._spoken = 0.0
        self.hashed = 0

    def listing(self, kept: Kept) -> CacheRow:
        """Look at one listing and mend it."""
        row: CacheRow = {
            "id": kept.id,
            "source": kept.source,
            "detail": "",
            "wrong_files": [],
        }
        if kept.listing is None:
            return {**row, "files": 0, "bytes": 0, "outcome": self._drop(kept)}
        listing = kept.listing
        row["files"], row["bytes"] = len(listing.files), listing.size
        with Lock(self._layout.locks, f"listing-{kept.id}"):
            if not self._layout.tree(kept.id).is_dir() and not self._trees.sealed(kept.id):
                return {**row, "outcome": DROPPED, "detail": "it was evicted meanwhile"}
            with reserved(self._layout, listing):
                wrong = self._wrong(listing)
                if wrong is None and self._trees.sound(listing, thoroughly=True):
                    return {**row, "outcome": WHOLE}
                problem = self._repair(kept, listing)
        if wrong is not None:
            row["wrong_files"] = [file.path for file in listing.files if file.sha256 in wrong]
        if problem is None:
            return {**row, "outcome": REPAIRED}
        return {**row, "outcome": self._drop(kept), "detail": problem}

    def _wrong(self, listing: Listing) -> Optional[Digests]:
        """The contents of the listing that are not right here, if there are any; those are put aside, to be mended in place."""
        self._trees.adopt(listing)
        contents = listing.contents
        wrong = bytearray(len(contents))

        def look(numbered: Tuple[int, File]) -> None:
            number, file = numbered
            wrong[number] = not self._blobs.right(file)
            self._looked(file, right=not wrong[number])

        unknown = (one for one in enumerate(contents) if one[1].sha256 not in self._good)
        for_each(look, unknown, min(_MOST_THREADS, os.cpu_count() or 1))
        self._trees.distrust_copies(listing)
        self._are_good(file for file, bad in zip(contents, wrong) if not bad)
        return Digests(file.sha256 for file in compress(contents, wrong)) if any(wrong) else None

    def _repair(self, kept: Kept, listing: Listing) -> Optional[str]:
        """Make the listing whole from the mirror; why that can't be done, or None."""
        if not self._request.get("origin"):
            return "there is no mirror to repair it from"
        try:
            limit = limit_of(self._request)
            with contextlib.closing(Sources(self._request, listing, self._asking)) as sources:
                Filling(self._layout, listing, sources, lambda event: None, limit, lease="").run(
                    kept.source
                )
        except Failure as error:
            return f"{error.summary}. {error.detail}"
        except OSError as error:
            failure = from_os_error(error, str(self._layout.cache))
            return f"{failure.summary}. {failure.detail}"
        self._are_good(listing.contents)
        return None

    def _are_good(self, files: Iterable[File]) -> None:
        for file in files:
            self._good.add(file.sha256)

    def _drop(self, kept: Kept) -> str:
        """Take away what can't be repaired; where a live run has it, see that no other begins to use it."""
        with room_lock(self._layout):
            removal = Removal(self._layout, Inventory(self._layout).listings())
            if removal.listing(kept, Leases(self._layout).need) is not None:
                return DROPPED
        with contextlib.suppress(FileNotFoundError):
            self._layout.seal(kept.id).unlink()
        return WRONG

    def _looked(self, file: File, *, right: bool) -> None:
        with self._lock:
            self.hashed += file.size
            self._right += right
            now = time.monotonic()
            if now - self._spoken >= _EVENT_SECONDS or self.hashed >= self._total:
                self._spoken = now
                self._emit({"done": self.hashed, "total": self._total, "files": self._right})
