"""Credentials that somebody is asked for: once for all who use them, and once more for all when they end."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace

from trainctl.model.once import Once
from trainctl.spi.sources import Credential


class AskedOnce:
    """What was asked for, by what it is of; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._known = Once[Credential | None](asks_again=True)

    def get(self, key: Hashable, ask: Callable[[], Credential | None]) -> Credential | None:
        """What ``ask`` gave the first who wanted it; None where there was nothing. What it raises is not kept."""
        known = self._known.get(key, ask)
        if known is None or known.renew is None:
            return known
        renew = known.renew

        def renewed() -> Credential:
            with self._of(key):
                if self._known.get(key, ask) is known:  # nobody was quicker
                    self._known.put(key, renew())
            return self.get(key, ask) or known

        return replace(known, renew=renewed)

    def _of(self, key: Hashable) -> threading.Lock:
        with self._lock:
            return self._locks[key]
