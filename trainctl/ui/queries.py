"""Queries of open pages, shared by all of them, and paced so that pages cost hosts little."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import TrainctlError

T = TypeVar("T")
PACE_SECONDS = 5.0
"""Between repeated queries; each makes at most one request to a node."""
REFRESH = 15.0
"""Age in seconds from which an answer is refreshed."""
_SHOWN_SECONDS = 8.0
"""An answer that no page has asked for since isn't shown by any."""


@dataclass(slots=True)
class QueryResult(Generic[T]):
    """The last result of a query, a default until it is ``known``, and why a later attempt failed."""

    value: T
    known: bool = False
    problem: str = ""
    due: float = 0.0
    asked: float = 0.0
    running: Future[None] | None = None


class PageQueries:
    """Runs queries when pages ask for their answers; thread-safe.

    The first query of each answer begins at once; after that one in ``PACE_SECONDS``, that which is due for longest.
    """

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._answers: dict[Hashable, QueryResult[Any]] = {}
        self._next = 0.0
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="query")

    def get(
        self,
        key: Hashable,
        query: Callable[[T], T],
        default: Callable[[], T],
        every: float = REFRESH,
    ) -> QueryResult[T]:
        """Return the last answer; begin a query from its last value if it is due, ``every`` so many seconds."""
        with self._lock:
            if (answer := self._answers.get(key)) is None:
                answer = self._answers[key] = QueryResult(default())
            now = answer.asked = time.monotonic()
            if answer.running is None or self._is_next(answer, now):
                answer.due = math.inf  # until it has ended
                answer.running = self._pool.submit(self._run, answer, query, every)
        return answer

    def settle(self, *answers: QueryResult[Any]) -> None:
        """Wait ``patience`` seconds for the answers that aren't known. Read values afterwards."""
        wait([each.running for each in answers if each.running and not each.known], self._patience)

    def close(self) -> None:
        """Begin no more queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_next(self, answer: QueryResult[Any], now: float) -> bool:
        shown = [each for each in self._answers.values() if now - each.asked < _SHOWN_SECONDS]
        first = min(shown, key=lambda each: each.due)
        if answer is not first or now < max(self._next, answer.due):
            return False
        self._next = now + PACE_SECONDS
        return True

    def _run(self, answer: QueryResult[T], query: Callable[[T], T], every: float) -> None:
        try:
            answer.value = query(answer.value)
            answer.known, answer.problem = True, ""
        except Exception as error:  # noqa: BLE001 - the page says it
            unexpected = f"unexpected error: {error!r}"
            answer.problem = error.summary if isinstance(error, TrainctlError) else unexpected
            every = PACE_SECONDS
        answer.due = time.monotonic() + every
