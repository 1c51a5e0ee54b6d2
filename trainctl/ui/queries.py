"""Queries of open pages, shared by all of them, and paced so that pages cost hosts little."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import TrainctlError

T = TypeVar("T")
PACE_SECONDS = 5.0
_ASKED_SECONDS, _KEPT_SECONDS = 8.0, 600.0
"""An answer that no page asked for so long isn't refreshed, and is forgotten."""


@dataclass(slots=True)
class QueryResult(Generic[T]):
    """The last result of a query, a default until it is ``known``, and why a later attempt failed."""

    value: T
    known: bool = False
    problem: str = ""
    final: bool = False
    weight: float = 1.0
    updated: float = 0.0
    asked: float = 0.0
    running: Future[None] | None = None


class PageQueries:
    """Runs queries when pages ask for their answers; thread-safe.

    ``requests`` counts those to each host. A repeated query that made N requests to a host delays the next one by N times
    ``PACE_SECONDS``; then that with the oldest answer is repeated.
    """

    def __init__(self, requests: Callable[[], Counter[str]], patience: float | None) -> None:
        self._requests = requests
        self._patience = patience
        self._lock = threading.Lock()
        self._answers: dict[Hashable, QueryResult[Any]] = {}
        self._next = 0.0
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="query")

    def get(
        self,
        key: Hashable,
        query: Callable[[T | None], T],
        default: Callable[[], T],
        *,
        final: bool = False,
        weight: float = 1.0,
    ) -> QueryResult[T]:
        """Return the last answer, and begin a query if it is due; ``query`` gets the last result.

        A ``final`` result is never refreshed. ``weight``: an answer counts as so many times older.
        """
        with self._lock:
            now = time.monotonic()
            if (answer := self._answers.get(key)) is None:
                answer = self._answers[key] = QueryResult(default())
            answer.asked, answer.weight = now, weight
            is_first = answer.running is None
            if is_first or self._is_due(answer, now):
                if not is_first:
                    self._next = now + PACE_SECONDS
                answer.running = self._pool.submit(self._run, answer, query, is_first, final)
        return answer

    def settle(self, *answers: QueryResult[Any]) -> bool:
        """Wait ``patience`` seconds for the answers that aren't known; return whether some still aren't.

        Read values afterwards: they may become known meanwhile.
        """
        wait([each.running for each in answers if each.running and not each.known], self._patience)
        return any(not each.known and not each.problem for each in answers)

    def close(self) -> None:
        """Begin no more queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_due(self, answer: QueryResult[Any], now: float) -> bool:
        if answer.final or now < self._next or not (answer.running and answer.running.done()):
            return False
        for key in [k for k, each in self._answers.items() if now - each.asked > _KEPT_SECONDS]:
            del self._answers[key]
        asked = (each for each in self._answers.values() if now - each.asked < _ASKED_SECONDS)
        open_ = (each for each in asked if not each.final)
        return answer is max(open_, key=lambda each: (now - each.updated) * each.weight)

    def _run(
        self, answer: QueryResult[T], query: Callable[[T | None], T], is_first: bool, final: bool
    ) -> None:
        before = self._requests()
        try:
            answer.value = query(answer.value if answer.known else None)
            answer.known, answer.problem, answer.final = True, "", final
        except TrainctlError as error:
            answer.problem = error.summary
        except Exception as error:
            answer.problem = f"unexpected error: {type(error).__name__}"
            raise
        finally:
            with self._lock:
                answer.updated = time.monotonic()
                if not is_first:
                    made = max((self._requests() - before).values(), default=0)
                    self._next = answer.updated + PACE_SECONDS * made
