"""What is fetched once although several weights, or several files, need it."""

from __future__ import annotations

from trainctl.model.address import Address
from trainctl.operations.look_shared import shared
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.partial import Arrived

A, B, C = (Address.parse(f"weights.{name}") for name in "abc")
MIB = 2**20


def test_a_content_comes_with_the_first_that_needs_it() -> None:
    """Of the others each says with which; what has arrived of it is no part of that."""
    known = {
        B: Known((("1" * 64, 4 * MIB, False), ("2" * 64, 5 * MIB, False)), None, {0: Arrived(MIB, MIB)}),
        A: Known((("1" * 64, 4 * MIB, False),), None, {0: Arrived(MIB, MIB)}),
        C: Known((("2" * 64, 5 * MIB, False), ("1" * 64, 4 * MIB, False)), None, {1: Arrived(MIB, MIB)}),
    }  # fmt: skip

    assert shared(known) == {B: {A: 3 * MIB}, C: {A: 3 * MIB, B: 5 * MIB}}


def test_the_same_file_twice_comes_once() -> None:
    """Under two names of one source."""
    assert shared({A: Known((("1" * 64, MIB, False),) * 3, None)}) == {A: {A: 2 * MIB}}


def test_what_is_there_unknown_or_small_comes_with_nothing() -> None:
    """The mirror has it, nobody knows yet what it is, or it is not worth remembering."""
    rows = (("1" * 64, MIB, True), (None, MIB, False), ("2" * 64, MIB - 1, False))

    assert shared({A: Known(rows, None), B: Known(rows, None)}) == {}
