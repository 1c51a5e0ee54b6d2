"""What lies in a bucket: for whom, of what isn't whole, and what nothing refers to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from trainctl.base.clock import SystemClock
from trainctl.weights.bucket.look import references
from trainctl.weights.bucket.marking import Mark, mark
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.layout import unless_damaged
from trainctl.weights.mirror.needs import Need, Watch
from trainctl.weights.mirror.report import Inventory, inventory_of, rows_of


def inventory(shelf: Shelf) -> Inventory:
    """Writes nothing."""
    found = references(shelf)
    rows = rows_of(found.needs, shelf.read_listing)
    damaged = [error.summary for error in found.damaged.values()]
    marked = None if damaged else unless_damaged(partial(_marked, shelf, found.needs))
    if marked is None:
        return inventory_of(rows, damaged, shelf.lying_bytes(), None)
    return inventory_of(rows, damaged, marked.lying, marked.bytes)


def _marked(shelf: Shelf, found: Sequence[Need]) -> Mark:
    """What a collection would delete now; it learns the bucket's time by writing, and this does without."""
    busy = Watch(SystemClock().elapsed).busy(found)
    return Mark(lying=shelf.lying_bytes()) if busy else mark(shelf, found, math.inf)
