"""Callbacks as an iterator, and several iterators as one; no thread is left afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from trainctl.errors import NodeError
from trainctl.operations.streams import iterate_callbacks

Take = Callable[[bytes], None]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [item.name for item in threading.enumerate() if item.name == "producer"] == []


def merge(*sources: Iterator[Any], cancel: Callable[[], None] | None = None) -> Iterator[Any]:
    def produce(source: Iterator[Any], take: Callable[[Any], None]) -> None:
        for item in source:
            take(item)

    return iterate_callbacks(*(partial(produce, source) for source in sources), cancel=cancel)


def test_pieces_come_in_order_and_then_the_error() -> None:
    def produce(take: Take) -> None:
        for number in range(100):
            take(b"%d" % number)
        take(b"")
        raise NodeError("gone")

    pieces = iterate_callbacks(produce)
    assert [next(pieces) for _ in range(101)] == [*(b"%d" % number for number in range(100)), b""]
    with pytest.raises(NodeError, match="gone"):
        next(pieces)


def test_a_producer_waits_for_its_reader_and_ends_with_it() -> None:
    handed: list[int] = []
    waiting = threading.Event()

    def produce(take: Take) -> None:
        for number in range(10_000):
            handed.append(number)
            if number == 16:
                waiting.set()
            take(b"x")

    pieces = iterate_callbacks(produce)
    next(pieces)
    assert waiting.wait(60)
    assert len(handed) <= 18
    assert [next(pieces) for _ in range(50)] == [b"x"] * 50
    pieces.close()  # type: ignore[attr-defined]
    assert len(handed) < 100


def test_merged_sources_keep_their_order() -> None:
    merged = list(merge(iter(range(1000)), iter(range(1000, 1500)), iter(())))
    assert [number for number in merged if number < 1000] == list(range(1000))
    assert [number for number in merged if number >= 1000] == list(range(1000, 1500))


def test_a_silent_source_holds_up_no_other_and_an_error_ends_all() -> None:
    gate = threading.Event()

    def silent() -> Iterator[str]:
        gate.wait()
        yield "late"

    def broken() -> Iterator[str]:
        yield "early"
        raise ValueError("broken")

    merged = merge(silent(), iter(["early"]), cancel=gate.set)
    assert next(merged) == "early"
    gate.set()
    assert list(merged) == ["late"]
    gate.clear()
    merged = merge(silent(), broken(), cancel=gate.set)
    assert next(merged) == "early"
    with pytest.raises(ValueError, match="broken"):
        next(merged)


def test_endless_sources_end_with_their_reader() -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)

    merged = merge(endless(), endless())
    assert next(merged) == 1
    merged.close()  # type: ignore[attr-defined]
