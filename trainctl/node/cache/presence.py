"""Which weights are here already, and how much more could come. Writes nothing, and needs nothing that delivers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, Mapping, Set, Tuple

from trainctl.base.files import names_in
from trainctl.base.protocol.verb import AtCache, Nothing
from trainctl.base.protocol.weights import Cached, CacheQuery
from trainctl.base.protocol.wire import blocks, received
from trainctl.node.cache.inventory import Inventory
from trainctl.node.cache.leases import Leases
from trainctl.node.cache.room import claimable, leased_contents, limit_of
from trainctl.node.cache.trees import Trees
from trainctl.node.system import layout as names
from trainctl.node.system.disks import hold_twice
from trainctl.node.system.layout import Layout, layout_of
from trainctl.store.files import stamp, verified_bytes

Emit = Callable[[Dict[str, Any]], None]


def cache_query(request: CacheQuery, emit: Emit) -> Cached:
    """Which of the listings and blobs are whole here, going by seals and names, and how much more could come; with a ``mirror``
    on the same disk also how much of that there is for both."""
    layout = layout_of(request)
    trees = Trees(layout)
    listings = [names.sha256(one, "listing") for one in request.get("listings", [])]
    blobs = [names.sha256(one, "blob") for one in request.get("blobs", [])]
    found: Cached = {
        "trees": [one for one in listings if trees.sealed(one)],
        "blobs": [one for one in blobs if layout.files.has(one)],
    }
    arrived = _arrived(layout)
    present = {*found["blobs"]}
    partly = {one: some for one in blobs if one not in present and any(some := arrived(one))}
    if partly:
        found["arrived"] = partly
    if request.get("room"):
        leased: Set[str] = set()
        contents = _noting(set(blobs), leased_contents(layout), leased)
        found["room"], found["most"], disk = claimable(layout, limit_of(request), contents)
        if request.get("mirror") and hold_twice(
            layout.cache, names.absolute(request["mirror"], "mirror")
        ):
            found["beside_mirror"] = disk
        found["leases"] = sorted(Leases(layout).live())
        found["leased"] = [one for one in blobs if one in leased]
    if request.get("shared"):
        is_shared = _in_shared(request)
        found["shared"] = [one for one in blobs if is_shared(one)]
    return found


def cache_rows(request: AtCache, emit: Emit, stream: BinaryIO) -> Nothing:
    """The same of contents that follow the request as rows, however many: before the result comes a row for each, in their
    order, of whether it is here, whether a live run has it, whether the shared cache has it, and what has arrived of it."""
    layout, is_shared = layout_of(request), _in_shared(request)
    rows = next(received(stream), iter(()))
    asked = [names.sha256(sha256, "blob") for (sha256,) in rows]
    leased = set(leased_contents(layout))
    arrived = _arrived(layout)
    found = (
        (here, one in leased, is_shared(one), *((0, 0) if here else arrived(one)))
        for one in asked
        for here in (layout.files.has(one),)
    )
    for block in blocks([found]):
        emit(block)
    return {}


def _arrived(layout: Layout) -> Callable[[str], Tuple[int, int]]:
    """What tells of a content that isn't whole how many bytes of it needn't come again, going by its map or its stamp, and how many the disk has."""
    names_there, inventory = set(names_in(layout.partial)), Inventory(layout)

    def arrived(sha256: str) -> Tuple[int, int]:
        if f"{sha256}.part" not in names_there:
            return 0, 0
        laid, _ = inventory.sizes_of(sha256)
        with contextlib.suppress(FileNotFoundError):
            found = Path(layout.files.part(sha256)).stat()
            if found.st_mtime == stamp(sha256):
                return found.st_size, laid
            return min(laid, verified_bytes(layout.files.marks(sha256), found.st_size)), laid
        return 0, laid

    return arrived


def _noting(asked: Set[str], contents: Iterable[str], found: Set[str]) -> Iterator[str]:
    """The contents, which are read once: those that are asked for are found."""
    for one in contents:
        if one in asked:
            found.add(one)
        yield one


def _in_shared(request: Mapping[str, Any]) -> Callable[[str], bool]:
    """What tells of a content whether the shared cache has it."""
    if not request.get("shared"):
        return lambda sha256: False
    from trainctl.node.transfer.shared import shared_of  # with all that brings bytes

    shared = shared_of(request)
    return lambda sha256: shared is not None and os.path.isfile(shared.blob(sha256))  # noqa: PTH113 - millions
