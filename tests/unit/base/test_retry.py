from __future__ import annotations

import threading

import pytest

from trainctl.base.retry import RetryPolicy, RetryState
from trainctl.errors import (
    SourceNotFound,
    SourceThrottled,
    SourceUnavailable,
    TrainctlError,
    UserInterrupt,
)


def failing(retry: RetryPolicy, error: TrainctlError, tries: int) -> None:
    attempts = RetryState(retry, threading.Event())
    for _ in range(tries):
        attempts.failed(error)


def test_waits_grow_up_to_the_longest() -> None:
    waited: list[float] = []
    retry = RetryPolicy(
        8, 1.0, 10.0, wait=lambda event, seconds: waited.append(seconds), jitter=lambda: 1.0
    )
    failing(retry, SourceUnavailable("busy"), 7)
    assert waited == [1, 2, 4, 8, 10, 10, 10]


def test_the_last_error_is_raised() -> None:
    retry = RetryPolicy(3, wait=lambda event, seconds: None)
    failing(retry, SourceUnavailable("busy"), 2)
    with pytest.raises(SourceUnavailable):
        failing(retry, SourceUnavailable("busy"), 3)
    with pytest.raises(SourceNotFound):
        failing(retry, SourceNotFound("gone"), 1)


def test_a_cancelled_wait_ends_at_once() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(UserInterrupt):
        RetryState(RetryPolicy(), cancelled).failed(SourceUnavailable("busy", retry_after=100.0))


def test_what_upstream_asks_for_is_no_failed_attempt() -> None:
    """Waits that it asks for go on until patience ends, longer each time; then the error says how long it would be."""
    waited: list[float] = []
    retry = RetryPolicy(
        2, patience=300, wait=lambda event, seconds: waited.append(seconds), jitter=lambda: 1.0
    )
    with pytest.raises(SourceUnavailable, match="wait 20 s"):
        failing(retry, SourceUnavailable("busy", retry_after=20.0), 99)
    assert waited[:3] == [21, 21, 21]
    assert 300 - 21 < sum(waited) <= 300
    waited.clear()
    with pytest.raises(SourceUnavailable, match="wait 1"):
        failing(retry, SourceUnavailable("busy", retry_after=1.0), 99)
    assert waited[:6] == [2, 2, 3, 5, 9, 17]


def test_a_pause_is_told_by_who_was_asked_for_it() -> None:
    """A window of the Hub is waited for, and told once, however many wait."""
    waited: list[float] = []
    lines: list[str] = []
    retry = RetryPolicy(wait=lambda event, seconds: waited.append(seconds), notify=lines.append)
    failing(retry, SourceUnavailable("busy", retry_after=299.0), 1)
    failing(retry, SourceThrottled("resting", retry_after=298.0), 1)
    assert [299 < pause <= 300 for pause in waited] == [True, False]
    assert lines == ["busy; retrying in 5m"]
