"""Patience: how often and how long an operation is tried again. The only place that waits for a retry."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from trainctl.base.units import format_duration
from trainctl.errors import (
    Interrupted,
    SourceBusy,
    SourceResting,
    SourceUnreachable,
    TrainctlError,
)
from trainctl.spi.sources import Each
from trainctl.weights.sources.gates import LONGEST_PAUSE

T = TypeVar("T")
_NOTICEABLE = 2.0


def _given_up(tries: int) -> str:
    return f"Gave up after {tries} tries. Run the same command again later: it carries on from what it has."


def _silent(text: str) -> None:
    """For callers with nobody to tell."""


def _wait(cancelled: threading.Event, seconds: float) -> None:
    cancelled.wait(seconds)


@dataclass(frozen=True)
class Retry:
    """Exponential back-off with jitter, from ``base`` up to ``longest`` seconds; the last error is raised.

    Who doesn't answer at all is asked ``unanswered`` times only: somebody waits for a plan, and a name may be wrong.
    What upstream itself asks for is waited instead, and is no failed attempt: it may be its quota, which others spend too.
    All of it together never lasts more than ``patience`` seconds. ``tell`` is told of waits that somebody might wonder about.
    """

    attempts: int = 6
    base: float = 1.0
    longest: float = 30.0
    patience: float = LONGEST_PAUSE
    wait: Callable[[threading.Event, float], object] = _wait
    jitter: Callable[[], float] = random.random
    tell: Callable[[str], None] = _silent
    unanswered: int = 2

    @property
    def patient(self) -> Retry:
        """The same with one who has answered before, and who may only be restarting."""
        return replace(self, unanswered=self.attempts)

    def each(self, cancelled: threading.Event) -> Each:
        """The same for each of several requests."""

        def made(act: Callable[[], T]) -> T:
            return self.run(act, cancelled)

        return made

    def run(self, act: Callable[[], T], cancelled: threading.Event) -> T:
        """Call until it succeeds, the error is not retryable, or patience ends."""
        attempts = Attempts(self, cancelled)
        while True:
            try:
                return act()
            except TrainctlError as error:  # noqa: PERF203 - it is tried few times
                attempts.failed(error)


class Attempts:
    """The tries of one operation so far."""

    def __init__(self, retry: Retry, cancelled: threading.Event) -> None:
        self._retry = retry
        self._cancelled = cancelled
        self.advanced()

    def advanced(self) -> None:
        """Something was achieved: the next failure is the first again."""
        self._failures = 0
        self._refusals = 0
        self._waited = 0.0

    def failed(self, error: TrainctlError) -> None:
        """Wait before the next try, or raise the error if there is to be none."""
        if not error.retryable:
            raise error
        asked = error.retry_after if isinstance(error, SourceBusy) else None
        seconds = self._as_asked(error, asked) if asked else self._backoff(error)
        if seconds >= _NOTICEABLE and not isinstance(error, SourceResting):
            self._retry.tell(f"{error.summary}; trying again in {format_duration(seconds)}")
        self._retry.wait(self._cancelled, seconds)
        if self._cancelled.is_set():
            raise Interrupted("stopped while waiting to try again", error.summary)

    def _backoff(self, error: TrainctlError) -> float:
        self._failures += 1
        silent = isinstance(error, SourceUnreachable)
        if self._failures >= (self._retry.unanswered if silent else self._retry.attempts):
            error.detail = f"{error.detail} {_given_up(self._failures)}".strip()
            raise error
        return self._longer(self._failures) * self._spread()

    def _as_asked(self, error: TrainctlError, asked: float) -> float:
        """A little longer, so that not everybody is back at once; and much longer for who always asks for a little."""
        if self._waited + asked > self._retry.patience:
            raise SourceBusy(
                error.summary,
                f"It asks to wait {format_duration(asked)}. Run the same command again after that.",
                code=error.code,
                retry_after=asked,
            ) from error
        self._refusals += not isinstance(error, SourceResting)
        at_least = max(asked, self._longer(self._refusals - 1))
        seconds = at_least + self._retry.base * self._spread()
        self._waited += seconds
        return seconds

    def _longer(self, failures: int) -> float:
        return min(self._retry.longest, self._retry.base * 2.0 ** (failures - 1))

    def _spread(self) -> float:
        return 0.5 + self._retry.jitter() / 2
