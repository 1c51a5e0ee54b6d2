"""What lies in a mirror in a directory: for whom, of what isn't whole, and what nothing refers to."""

from __future__ import annotations

from functools import partial

from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.known import stored_bytes
from trainctl.weights.mirror.layout import Layout, unless_damaged
from trainctl.weights.mirror.needs import references
from trainctl.weights.mirror.report import Inventory, inventory_of


def inventory(mirror: DirectoryMirror) -> Inventory:
    """Writes nothing. StorageError where the mirror, or a reference, may not be read."""
    rows = mirror.sources()
    with explained(mirror.root):
        found = references(Layout(mirror.root, mirror.chunk_bytes))
    damaged = [error.summary for error in found.damaged.values()]
    free = None if damaged else unless_damaged(partial(_free, mirror))
    return inventory_of(rows, damaged, stored_bytes(mirror), free)


def _free(mirror: DirectoryMirror) -> int:
    """What a collection would delete now."""
    return collect(mirror, Collecting(dry_run=True)).bytes
