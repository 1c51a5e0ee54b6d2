from __future__ import annotations

import threading

import pytest

from trainctl.base.parallel import BackgroundCall, each, map_ordered


def test_results_stand_in_the_order_of_their_values() -> None:
    last = threading.Event()

    def act(number: int) -> int:
        if number == 3:
            last.set()
        assert last.wait(10)
        return number * number

    assert each(act, range(4), 4) == [0, 1, 4, 9]
    for count in (1, 4):
        assert list(map_ordered(str, range(count), 2)) == [(n, str(n)) for n in range(count)]


def test_the_first_error_is_raised_and_nothing_is_begun_after_it() -> None:
    begun: list[int] = []

    def act(number: int) -> None:
        begun.append(number)
        raise IndexError(number)

    with pytest.raises(IndexError):
        each(act, range(100), 2)
    assert len(begun) <= 2


def test_a_call_in_the_background_is_awaited_with_its_error() -> None:
    begun = threading.Event()
    with BackgroundCall(begun.wait, 10) as waiting, BackgroundCall(int, "x") as failing:
        begun.set()
    assert waiting.result()
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result()
