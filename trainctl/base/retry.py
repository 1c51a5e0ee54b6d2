"""Retry operations that failed for a passing reason."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, replace
from typing import Callable, Protocol, TypeVar

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
"""The longest that a server may ask to wait, in seconds."""
_NOTICEABLE = 2.0


class RetryFn(Protocol):
    """Makes one request of several, and retries it as its caller wants."""

    def __call__(self, act: Callable[[], T]) -> T:
        """Return what the request returns."""
        ...


def no_retry(act: Callable[[], T]) -> T:
    """An Each that retries nothing."""
    return act()


def _attempts_text(tries: int) -> str:
    return f"Gave up after {tries} tries. Run the same command again later: it resumes."


def _ignore(text: str) -> None:
    """Report nothing."""


def _wait(cancelled: threading.Event, seconds: float) -> None:
    cancelled.wait(seconds)


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential back-off with jitter, from ``base`` up to ``longest`` seconds; the last error is raised.

    A server that doesn't answer at all is tried ``unanswered`` times only: a person waits, and its name may be wrong.
    A wait that the server itself asks for isn't a failed attempt, as others may spend its quota too. All these waits
    together never last more than ``patience`` seconds. ``tell`` is called with waits that are worth reporting.
    """

    attempts: int = 6
    base: float = 1.0
    longest: float = 30.0
    patience: float = MAX_PAUSE_SECONDS
    wait: Callable[[threading.Event, float], object] = _wait
    jitter: Callable[[], float] = random.random
    tell: Callable[[str], None] = _ignore
    unanswered: int = 2

    @property
    def patient(self) -> RetryPolicy:
        """The same for a server that has answered before, and may only be restarting."""
        return replace(self, unanswered=self.attempts)

    def each(self, cancelled: threading.Event) -> RetryFn:
        """Retry each of several requests."""

        def made(act: Callable[[], T]) -> T:
            return self.run(act, cancelled)

        return made

    def run(self, act: Callable[[], T], cancelled: threading.Event) -> T:
        """Call until it succeeds, the error is not retryable, or patience ends."""
        attempts = RetryState(self, cancelled)
        while True:
            try:
                return act()
            except TrainctlError as error:  # noqa: PERF203
                attempts.failed(error)


class RetryState:
    """The attempts at an operation so far."""

    def __init__(self, retry: RetryPolicy, cancelled: threading.Event) -> None:
        self._retry = retry
        self._cancelled = cancelled
        self.advanced()

    def advanced(self) -> None:
        """Note progress: the next failure counts as the first."""
        self._failures = 0
        self._refusals = 0
        self._waited = 0.0

    def failed(self, error: TrainctlError) -> None:
        """Wait before the next attempt, or raise the error if there is to be none."""
        if not error.retryable:
            raise error
        asked = error.retry_after if isinstance(error, SourceUnavailable) else None
        seconds = self._as_asked(error, asked) if asked else self._backoff(error)
        if seconds >= _NOTICEABLE and not isinstance(error, SourceThrottled):
            self._retry.tell(f"{error.summary}; trying again in {format_duration(seconds)}")
        self._retry.wait(self._cancelled, seconds)
        if self._cancelled.is_set():
            raise UserInterrupt("stopped while waiting to try again", error.summary)

    def _backoff(self, error: TrainctlError) -> float:
        self._failures += 1
        silent = isinstance(error, SourceUnreachable)
        if self._failures >= (self._retry.unanswered if silent else self._retry.attempts):
            error.detail = f"{error.detail} {_attempts_text(self._failures)}".strip()
            raise error
        return self._longer(self._failures) * self._spread()

    def _as_asked(self, error: TrainctlError, asked: float) -> float:
        """Somewhat longer than asked, so that not all return at once; longer each time if the server asks again."""
        if self._waited + asked > self._retry.patience:
            raise SourceUnavailable(
                error.summary,
                f"It asks to wait {format_duration(asked)}. Run the same command again after that.",
                code=error.code,
                retry_after=asked,
            ) from error
        self._refusals += not isinstance(error, SourceThrottled)
        at_least = max(asked, self._longer(self._refusals - 1))
        seconds = at_least + self._retry.base * self._spread()
        self._waited += seconds
        return seconds

    def _longer(self, failures: int) -> float:
        return min(self._retry.longest, self._retry.base * 2.0 ** (failures - 1))

    def _spread(self) -> float:
        return 0.5 + self._retry.jitter() / 2
