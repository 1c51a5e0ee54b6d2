"""Who uses what of a node's cache, where not all of it may be read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.machines.permissions import unreadable
from trainctl.base.listing import Listing
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.system.layout import Layout

ASKED: list[Callable[[CacheReferences, str], object]] = [
    CacheReferences.refers,
    CacheReferences.last_used,
    CacheReferences.drop_listing,
]


@pytest.mark.parametrize("ask", ASKED)
def test_who_may_not_read_references_takes_nothing_for_unused(
    ask: Callable[[CacheReferences, str], object],
) -> None:
    """It is an error, and no word of a listing that nobody uses; a file among them is nobody's reference."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        layout = Layout(f"{place}/node")
        references, listing = CacheReferences(layout), Listing(())
        references.refer("one", listing, "somebody")
        (layout.references / "junk").write_text("")
        hidden = layout.references / "one"

        assert references.refers(listing.id)
        with unreadable(hidden, Path(place)), pytest.raises(PermissionError):
            ask(references, listing.id)
        assert references.refers(listing.id)
