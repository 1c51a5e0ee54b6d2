"""Limits per host: concurrent requests, and pauses that the host asked for.

Servers count requests by address or account, so the limits are shared by the whole process.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Callable, Dict, Iterator, Mapping, Optional

from trainctl.base.http.urls import Origin
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.http_errors import HostThrottled
from trainctl.base.retry import MAX_PAUSE_SECONDS

MAX_CONCURRENT = 32
_DEFAULT_PAUSE = 1.0
_NOTICEABLE = 1.0
_MAX_WAIT = 1e9  # larger numbers overflow waits; every one is over the limit
_RATE_LIMIT = compile_lazily(r";\s*r\s*=\s*(\d{1,9})\s*;\s*t\s*=\s*(\d{1,9})")


class HostLimit:
    """The limits of one host. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = threading.Semaphore(MAX_CONCURRENT)
        self._clock = clock
        self._lock = threading.Lock()
        self._not_before = 0.0

    @contextmanager
    def slot(self, host: str) -> Iterator[None]:
        """Hold one of the slots, once free; HostThrottled during a pause."""
        self._check_pause(host)
        with self._slots:
            self._check_pause(host)
            yield

    def _check_pause(self, host: str) -> None:
        left = self._not_before - self._clock()
        if left > 0:
            raise HostThrottled(host, left)

    def pause(self, seconds: Optional[float]) -> bool:
        """Start a pause, by default of one second; return whether it is longer.

        A pause over MAX_PAUSE_SECONDS is not kept: only the request that received it fails.
        """
        duration = _DEFAULT_PAUSE if seconds is None else seconds
        if duration > MAX_PAUSE_SECONDS:
            return True
        now = self._clock()
        with self._lock:
            longer = now + duration > self._not_before + _NOTICEABLE or now >= self._not_before
            self._not_before = max(self._not_before, now + duration)
        return longer


class HostLimits:
    """The limits of every host, created on first use."""

    def __init__(self) -> None:
        self._limits: Dict[Origin, HostLimit] = {}

    def of(self, origin: Origin) -> HostLimit:
        """Return the limits of one origin."""
        return self._limits.get(origin) or self._limits.setdefault(origin, HostLimit())

    def clear(self) -> None:
        """Clear all pauses."""
        self._limits.clear()


LIMITS = HostLimits()
"""The limits of this process."""


def retry_after(headers: Mapping[str, str]) -> Optional[float]:
    """Return the seconds to wait by the response; dates count from its ``Date``.

    The Hub sends ``RateLimit``: requests left in the window (r) and seconds to its end (t).
    """
    limit = _RATE_LIMIT.search(headers.get("RateLimit") or "")
    if limit is not None and not int(limit[1]):
        return float(limit[2])
    text = (headers.get("Retry-After") or "").strip()
    if text.isdecimal():
        return min(float(text), _MAX_WAIT)
    until = http_date(text)
    if until is None:
        return None
    now = http_date(headers.get("Date") or "") or datetime.now(timezone.utc)
    return max(0.0, (until - now).total_seconds())


def http_date(text: str) -> Optional[datetime]:
    """Parse a date, in UTC unless it has a zone; None if it is invalid."""
    try:
        moment = parsedate_to_datetime(text)
        utc = timezone.utc
        return moment.astimezone(utc) if moment.tzinfo else moment.replace(tzinfo=utc)
    except (TypeError, ValueError, OverflowError):  # TypeError before Python 3.10
        return None
