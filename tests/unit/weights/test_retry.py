from __future__ import annotations

import threading

import pytest

from trainctl.errors import Interrupted, SourceBusy, SourceGone, TrainctlError
from trainctl.weights.retry import Attempts, Retry


def failing(retry: Retry, error: TrainctlError, tries: int) -> None:
    attempts = Attempts(retry, threading.Event())
    for _ in range(tries):
        attempts.failed(error)


def test_waits_grow_up_to_the_longest() -> None:
    """The wait doubles each time and stays below the longest."""
    waited: list[float] = []
    retry = Retry(
        8, 1.0, 10.0, wait=lambda event, seconds: waited.append(seconds), jitter=lambda: 1.0
    )
    failing(retry, SourceBusy("busy"), 7)
    assert waited == [1, 2, 4, 8, 10, 10, 10]


def test_jitter_keeps_half() -> None:
    """Waits of many clients differ, and none is below half."""
    waited: list[float] = []
    retry = Retry(wait=lambda event, seconds: waited.append(seconds))
    for _ in range(50):
        failing(retry, SourceBusy("busy"), 1)
    assert len(set(waited)) > 10
    assert 0.5 <= min(waited) <= max(waited) <= 1.0


def test_the_last_error_is_raised() -> None:
    """After as many failures as attempts the error itself comes out."""
    retry = Retry(3, wait=lambda event, seconds: None)
    failing(retry, SourceBusy("busy"), 2)
    with pytest.raises(SourceBusy):
        failing(retry, SourceBusy("busy"), 3)
    with pytest.raises(SourceGone):
        failing(retry, SourceGone("gone"), 1)


def test_advancing_starts_anew() -> None:
    """What was achieved between failures renews the patience."""
    attempts = Attempts(Retry(2, wait=lambda event, seconds: None), threading.Event())
    for _ in range(5):
        attempts.failed(SourceBusy("busy"))
        attempts.advanced()


def test_a_cancelled_wait_ends_at_once() -> None:
    """Cancelling interrupts the wait instead of trying again."""
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Interrupted):
        Attempts(Retry(), cancelled).failed(SourceBusy("busy", retry_after=100.0))
