"""What a node does with very many things at once: work by several threads, reservations."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.storage.many_files import listing_of
from trainctl.node.cache import leases as reservations
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.system.layout import Layout


def test_reservations_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """Contents of live deliveries are reserved; files that are not reservations go too."""
    layout, listing = Layout(str(tmp_path)), listing_of(0, 500)
    CacheReferences(layout).refer("one", listing, "somebody")
    layout.reservations.mkdir(parents=True)
    layout.locks.mkdir()
    dead = {"listing": listing.id, "bytes": 1, "holder": None}
    for name, text in ((f"{listing.id}.1.dead", dead), ("other", [])):
        (layout.reservations / name).write_text(json.dumps(text))

    with reservations.reserve_listing(layout, listing):
        assert set(reservations.reservations(layout)) == set(listing.unique_files)
        assert reservations.reserved_bytes(layout) == listing.size

    assert list(layout.reservations.iterdir()) == []
    assert reservations.reserved_bytes(layout) == 0
