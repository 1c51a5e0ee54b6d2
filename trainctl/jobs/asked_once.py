"""What somebody is asked for: once for all who use it; and of credentials once more for all when they end."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, TypeVar

from trainctl.spi.sources import Credential

T = TypeVar("T")


class AskedTogether(Generic[T]):
    """What was asked for, by what it is of; safe to use from many threads.

    What was raised is not kept, but told to all who waited for it: one after another they would wait for who is away as often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[Hashable, Future[T]] = {}

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """What ``ask`` gave the first who wanted it, or is about to."""
        with self._lock:
            known = self._answers.get(key)
            answer = known or self._answers.setdefault(key, Future())
        if known is None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001  whatever it is, all who wait must hear of it
                with self._lock:
                    del self._answers[key]
                answer.set_exception(error)
        return answer.result()

    def put(self, key: Hashable, value: T) -> None:
        """Another answer from now on."""
        answer: Future[T] = Future()
        answer.set_result(value)
        with self._lock:
            self._answers[key] = answer


class AskedOnce:
    """Credentials that end; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._known = AskedTogether[Credential | None]()

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
