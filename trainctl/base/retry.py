"""Retry transient errors with back-off."""

from __future__ import annotations

import random
import threading
from typing import Callable, Protocol, TypeVar

from trainctl.base.clock import elapsed
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.units import format_duration
from trainctl.errors import (
    SourceThrottled,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
    UserInterrupt,
)

T = TypeVar("T")
MAX_PAUSE_SECONDS = 600.0
"""Longest wait that a server may request, in seconds."""
_NOTICEABLE = 2.0  # shorter waits are over before they are read


class RetryFn(Protocol):
    """Calls a function, retrying transient errors."""

    def __call__(self, act: Callable[[], T]) -> T:
        """Return what ``act`` returns."""


def no_retry(act: Callable[[], T]) -> T:
    """Call without retrying."""
    return act()


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential back-off with jitter, from ``base`` to ``longest`` seconds.

    A server that doesn't respond at all is tried ``unanswered`` times only, as its name may be wrong. Waits that a
    server requests don't count as attempts; together they last ``patience`` seconds at most. No attempt begins later
    than ``within`` seconds after the first, suspend included. ``notify`` is called with waits that are worth reporting.
    """

    attempts: int = 6
    base: float = 1.0
    longest: float = 30.0
    patience: float = MAX_PAUSE_SECONDS
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    jitter: Callable[[], float] = random.random
    notify: Callable[[str], None] = lambda text: None
    unanswered: int = 2
    within: float = float("inf")

    @property
    def patient(self) -> RetryPolicy:
        """The policy for a server that has responded before and may be restarting."""
        return replace(self, unanswered=self.attempts)

    def each(self, cancelled: threading.Event) -> RetryFn:
        """Return a function that retries each call separately."""

        def retry(act: Callable[[], T]) -> T:
            return self.run(act, cancelled)

        return retry

    def run(self, act: Callable[[], T], cancelled: threading.Event) -> T:
        """Call until success; raise the first error that is final."""
        attempts = RetryState(self, cancelled)
        while True:
            try:
                return act()
            except TrainctlError as error:  # noqa: PERF203
                attempts.failed(error)


class RetryState:
    """Attempts at one operation."""

    def __init__(self, retry: RetryPolicy, cancelled: threading.Event) -> None:
        self._retry = retry
        self._cancelled = cancelled
        self.advanced()

    def advanced(self) -> None:
        """Record progress: the next failure counts as the first."""
        self._failures = 0
        self._refusals = 0
        self._waited = 0.0
        self._began = elapsed()

    def failed(self, error: TrainctlError) -> None:
        """Wait before the next attempt, or raise the error if it is final."""
        if not error.retryable:
            raise error
        requested = error.retry_after if isinstance(error, SourceUnavailable) else None
        if requested:
            if self._waited + requested > self._retry.patience:
                raise SourceUnavailable(
                    error.summary,
                    f"The server asks to wait {format_duration(requested)}. Run the same command again after that.",
                    code=error.code,
                    retry_after=requested,
                ) from error
            # longer than requested, growing with repeated requests
            self._refusals += not isinstance(error, SourceThrottled)
            at_least = max(requested, self._exponential(self._refusals - 1))
            seconds = at_least + self._retry.base * self._jitter()
            self._waited += seconds
        else:
            self._failures += 1
            no_response = isinstance(error, SourceUnreachable)
            if self._failures >= (self._retry.unanswered if no_response else self._retry.attempts):
                raise _given_up(error, self._failures)
            seconds = self._exponential(self._failures) * self._jitter()
        if elapsed() + seconds - self._began > self._retry.within:
            raise _given_up(error, self._failures)
        if seconds >= _NOTICEABLE and not isinstance(error, SourceThrottled):
            self._retry.notify(f"{error.summary}; retrying in {format_duration(seconds)}")
        self._retry.wait(self._cancelled, seconds)
        if self._cancelled.is_set():
            raise UserInterrupt("stopped while waiting to retry", error.summary)

    def _exponential(self, failures: int) -> float:
        return min(self._retry.longest, self._retry.base * 2.0 ** (failures - 1))

    def _jitter(self) -> float:
        return 0.5 + self._retry.jitter() / 2


def _given_up(error: TrainctlError, failures: int) -> TrainctlError:
    times = f" after {failures} attempts" if failures > 1 else ""
    advice = f"Gave up{times}. Run the same command again later: it resumes."
    error.detail = f"{error.detail} {advice}".strip()
    return error
