"""When holders of leases count as dead, by a clock that only the test moves."""

from __future__ import annotations

import os
import re

import pytest

from trainctl.base.lease import (
    RENEW_SECONDS,
    STALE_SECONDS,
    Liveness,
    holder_name,
    known_alive,
    known_dead,
)


class FakeClock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_holders_name_tells_whether_it_runs() -> None:
    mine = holder_name()
    place, pid, _ = mine.split("-")
    assert re.fullmatch(r"[\w.-]{1,120}", mine)
    assert int(pid) == os.getpid()
    assert known_alive(mine)
    assert not known_dead(mine)
    reused = f"{place}-{pid}-1"
    assert known_dead(reused)
    assert not known_alive(reused)


@pytest.mark.parametrize("name", ["", "nonsense", "a.b-1-1", "a.b-c-d", "a-1-1", "--"])
def test_a_holder_elsewhere_is_neither_dead_nor_alive(name: str) -> None:
    assert not known_dead(name)
    assert not known_alive(name)


def test_a_holder_is_stale_once_its_sign_was_unchanged_for_long_enough(clock: FakeClock) -> None:
    liveness = Liveness(clock)
    assert not liveness.is_stale("a", 1)
    clock.at += STALE_SECONDS - 1
    assert not liveness.is_stale("a", 1)
    clock.at += 1
    assert liveness.is_stale("a", 1)


def test_every_renewal_begins_the_wait_again(clock: FakeClock) -> None:
    liveness = Liveness(clock)
    for sign in range(20):
        assert not liveness.is_stale("a", sign)
        clock.at += STALE_SECONDS - 1
    assert not liveness.is_stale("a", 0)


def test_holders_are_watched_apart(clock: FakeClock) -> None:
    liveness = Liveness(clock, stale_seconds=10)
    liveness.is_stale("a", 1)
    clock.at += 5
    liveness.is_stale("b", 1)
    clock.at += 5
    assert liveness.is_stale("a", 1)
    assert not liveness.is_stale("b", 1)


def test_a_slow_read_does_not_count_as_silence(clock: FakeClock) -> None:
    """A sign that was read from when the clock was at ``read_at`` may have changed since."""
    liveness = Liveness(clock)
    liveness.is_stale("a", 1)
    began = clock.at
    clock.at += STALE_SECONDS
    assert not liveness.is_stale("a", 1, read_at=began)
    assert liveness.is_stale("a", 1, read_at=clock.at)


def test_holders_renew_often_enough() -> None:
    assert RENEW_SECONDS * 3 < STALE_SECONDS
