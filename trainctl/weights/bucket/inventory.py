"""What lies in a mirror in a bucket: for whom, of what isn't whole, and what nothing refers to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainctl.ledger.clock import SystemClock
from trainctl.weights.bucket.look import references
from trainctl.weights.bucket.marking import mark
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.needs import Need, Watch
from trainctl.weights.mirror.report import Inventory, inventory_of, rows_of


def inventory(shelf: Shelf) -> Inventory:
    """Writes nothing."""
    found = references(shelf)
    rows = rows_of(found.needs, shelf.read_listing)
    damaged = [error.summary for error in found.damaged.values()]
    return inventory_of(rows, damaged, shelf.lying_bytes(), lambda: _free(shelf, found.needs))


def _free(shelf: Shelf, found: Sequence[Need]) -> int:
    """What a collection would delete now; it learns the bucket's time by writing, and this does without."""
    busy = Watch(SystemClock().elapsed).busy(found)
    return 0 if busy else mark(shelf, found, math.inf).bytes
