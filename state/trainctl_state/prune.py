"""Pruning: packing what the older kept snapshot covers into history, then emptying it in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainctl.base.objects import ObjectStore
from trainctl_state.archive import Archive, Batch, Pack
from trainctl_state.layout import LOG, SNAPSHOTS, key_of

KEPT_SNAPSHOTS = 2
"""One to read, and the one before it in case that can't be."""


def prune(
    store: ObjectStore,
    archive: Archive,
    snapshots: Sequence[int],
    load: Callable[[int], Batch],
) -> None:
    """Prune what the older of the kept snapshots covers. Repeats without harm, and finishes what a killed one began."""
    if len(snapshots) < KEPT_SNAPSHOTS:
        return
    floor = snapshots[-KEPT_SNAPSHOTS]
    before = archive.last()
    if before is not None and store.get(key_of(LOG, before.first)):
        _empty(store, before)
    for pack in archive.extend(floor, load):
        _empty(store, pack)
    for position in snapshots[:-KEPT_SNAPSHOTS]:
        store.delete([key_of(SNAPSHOTS, position)])


def _empty(store: ObjectStore, pack: Pack) -> None:
    # The first one last: while it is not empty, the rest may not be either.
    for position in reversed(range(pack.first, pack.next)):
        store.put(key_of(LOG, position), b"", durable=False)
