"""What a node does with very many things at once: work by several threads, reservations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.many_files import listing_of
from trainctl.node.cache import reservations
from trainctl.node.cache.references import References
from trainctl.node.system.layout import Layout
from trainctl.node.system.threads import for_each


def test_several_threads_do_each_thing_once() -> None:
    """They take one after another from what may have no end in memory."""
    done: list[int] = []

    for_each(done.append, iter(range(1000)), 4)

    assert sorted(done) == list(range(1000))


def test_nothing_is_begun_after_an_error() -> None:
    """It is raised, whichever thread had it."""
    begun: list[int] = []
    failed = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            failed.set()
            raise ValueError(number)
        failed.wait(10)

    with pytest.raises(ValueError, match="3"):
        for_each(work, iter(range(100_000)), 4)

    assert len(begun) < 100_000


def test_an_error_of_who_tells_what_is_next_is_raised() -> None:
    """It ends the work, too."""

    def things() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        for_each(lambda thing: None, things(), 3)


def test_reservations_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """Contents of live deliveries are reserved; files that are not reservations go too."""
    layout, listing = Layout(str(tmp_path)), listing_of(0, 500)
    References(layout).refer("one", listing, "somebody")
    layout.reservations.mkdir(parents=True)
    layout.locks.mkdir()
    dead = {"listing": listing.id, "bytes": 1, "holder": None}
    for name, text in ((f"{listing.id}.1.dead", dead), ("other", [])):
        (layout.reservations / name).write_text(json.dumps(text))

    with reservations.reserved(layout, listing):
        assert set(reservations.reservations(layout)) == set(listing.contents)
        assert reservations.reserved_bytes(layout) == listing.size

    assert list(layout.reservations.iterdir()) == []
    assert reservations.reserved_bytes(layout) == 0
