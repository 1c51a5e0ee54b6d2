"""Calls that many threads make at the same time, made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Results by question; safe to use from many threads.

    An exception is a result, too; with ``asks_again`` only for threads that already wait for it.
    """

    def __init__(self, *, asks_again: bool = False) -> None:
        self._asks_again = asks_again
        self._lock = threading.Lock()
        self._answers: dict[Hashable, Future[T]] = {}

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """Return the result of the first thread with this question, waiting for it if need be."""
        with self._lock:
            known = self._answers.get(question)
            answer = known or self._answers.setdefault(question, Future())
        if known is None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001  all waiting threads get it
                if self._asks_again:
                    with self._lock:
                        del self._answers[question]
                answer.set_exception(error)
        return answer.result()

    def put(self, question: Hashable, value: T) -> None:
        """Set the result."""
        answer: Future[T] = Future()
        answer.set_result(value)
        with self._lock:
            self._answers[question] = answer
