"""Several sources as one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trainctl.operations.streams import merge_by_arrival, prefetch_first


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "merge"]


def never() -> None:
    """For sources that end by themselves."""


def test_everything_comes_in_each_sources_order() -> None:
    """From all of them, and no thread is left."""
    found = list(merge_by_arrival([iter(range(1000)), iter(range(1000, 1500)), iter(())], never))

    assert [one for one in found if one < 1000] == list(range(1000))
    assert [one for one in found if one >= 1000] == list(range(1000, 1500))
    assert alive() == []


def test_one_that_waits_does_not_hold_up_another() -> None:
    """What arrives is handed out while another source is silent."""
    gate = threading.Event()

    def silent() -> Iterator[str]:
        gate.wait()
        yield "late"

    merged = merge_by_arrival([silent(), iter(["early"])], gate.set)
    assert next(merged) == "early"
    gate.set()
    assert list(merged) == ["late"]


def test_an_error_ends_all() -> None:
    """It is raised where it is read, and those that wait are given up."""
    gate = threading.Event()

    def waiting() -> Iterator[int]:
        gate.wait()
        yield 1

    def broken() -> Iterator[int]:
        yield 0
        raise ValueError("broken")

    merged = merge_by_arrival([waiting(), broken()], gate.set)
    assert next(merged) == 0
    with pytest.raises(ValueError, match="broken"):
        next(merged)
    assert alive() == []


def test_all_begin_at_once() -> None:
    """Each is waited for together with the others, which may be what it waits for; nothing of any is lost."""
    met = threading.Barrier(3, timeout=30)

    def rendezvous(*rest: str) -> Iterator[str]:
        met.wait()
        yield from rest

    found = prefetch_first([rendezvous("a", "b"), rendezvous(), rendezvous("c")])

    assert [list(one) for one in found] == [["a", "b"], [], ["c"]]


def test_leaving_early_ends_the_sources() -> None:
    """Also those that have much more to say."""

    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)

    merged = merge_by_arrival([endless(), endless()], never)
    assert next(merged) == 1
    merged.close()  # type: ignore[attr-defined]

    assert alive() == []
