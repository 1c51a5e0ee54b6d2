"""Pieces that are handed over, as an iterator."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trainctl.errors import NodeError
from trainctl.operations.streams import iterate_callbacks

Take = Callable[[bytes], None]


def alive() -> list[str]:
    """Threads that still work for an iterator."""
    return [thread.name for thread in threading.enumerate() if thread.name == "pieces"]


def test_pieces_come_in_turn() -> None:
    """All of them, empty ones too, and the thread is gone afterwards."""

    def produce(take: Take) -> None:
        for number in range(100):
            take(b"%d" % number)
        take(b"")

    assert list(iterate_callbacks(produce)) == [*(b"%d" % number for number in range(100)), b""]
    assert alive() == []


def test_an_error_comes_after_what_was_handed_over() -> None:
    """As itself, where it would have happened."""

    def produce(take: Take) -> None:
        take(b"a")
        raise NodeError("gone")

    got = iterate_callbacks(produce)
    assert next(got) == b"a"
    with pytest.raises(NodeError, match="gone"):
        next(got)
    assert alive() == []


def test_whoever_leaves_early_ends_the_work() -> None:
    """Also while it waits to hand over more than is kept in memory."""
    handed: list[int] = []

    def produce(take: Take) -> None:
        for number in range(10_000):
            take(b"x")
            handed.append(number)

    got = iterate_callbacks(produce)
    next(got)
    got.close()  # type: ignore[attr-defined]
    assert len(handed) < 100
    assert alive() == []


def test_memory_is_bounded() -> None:
    """A producer that is quicker than its reader waits."""
    handed: list[int] = []
    waiting = threading.Event()

    def produce(take: Take) -> None:
        for number in range(100):
            handed.append(number)
            if number == 16:
                waiting.set()
            take(b"x")

    got = iterate_callbacks(produce)
    next(got)
    assert waiting.wait(10)
    assert len(handed) <= 18
    assert len(list(got)) == 99
