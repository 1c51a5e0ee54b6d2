"""Patience: how often and how long an operation is tried again. The only place that waits for a retry."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from trainctl.errors import Interrupted, SourceBusy, SourceUnreachable, TrainctlError
from trainctl.model.units import format_duration

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
    What upstream itself asks for by Retry-After is waited instead, but never more than ``patience`` seconds.
    ``tell`` is told of waits that somebody might wonder about.
    """

    attempts: int = 6
    base: float = 1.0
    longest: float = 30.0
    patience: float = 120.0
    wait: Callable[[threading.Event, float], object] = _wait
    jitter: Callable[[], float] = random.random
    tell: Callable[[str], None] = _silent
    unanswered: int = 2

    @property
    def patient(self) -> Retry:
        """The same with one who has answered before, and who may only be restarting."""
        return replace(self, unanswered=self.attempts)

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
        self._failures = 0

    def advanced(self) -> None:
        """Something was achieved: the next failure is the first again."""
        self._failures = 0

    def failed(self, error: TrainctlError) -> None:
        """Wait before the next try, or raise the error if there is to be none."""
        self._failures += 1
        if not error.retryable:
            raise error
        silent = isinstance(error, SourceUnreachable)
        if self._failures >= (self._retry.unanswered if silent else self._retry.attempts):
            error.detail = f"{error.detail} {_given_up(self._failures)}".strip()
            raise error
        seconds = self._seconds(error)
        if seconds >= _NOTICEABLE:
            self._retry.tell(f"{error.summary}; trying again in {format_duration(seconds)}")
        self._retry.wait(self._cancelled, seconds)
        if self._cancelled.is_set():
            raise Interrupted("stopped while waiting to try again", error.summary)

    def _seconds(self, error: TrainctlError) -> float:
        asked = error.retry_after if isinstance(error, SourceBusy) else None
        if asked is not None and asked > self._retry.patience:
            raise SourceBusy(
                error.summary,
                f"It asks to wait {format_duration(asked)}. Run the same command again after that.",
                code=error.code,
                retry_after=asked,
            ) from error
        ceiling = min(self._retry.longest, self._retry.base * 2.0 ** (self._failures - 1))
        backoff = ceiling * (0.5 + self._retry.jitter() / 2)
        return backoff if asked is None else asked + backoff * 0.1
