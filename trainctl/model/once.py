"""A question that many have at the same time, asked once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Answers by what was asked; safe to use from many threads.

    What was raised is an answer, too; with ``asks_again`` only for those who waited for it, who one after another would wait
    for who is away as often.
    """

    def __init__(self, *, asks_again: bool = False) -> None:
        self._asks_again = asks_again
        self._lock = threading.Lock()
        self._answers: dict[Hashable, Future[T]] = {}

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """What the first who had this question was answered, or is about to be."""
        with self._lock:
            known = self._answers.get(question)
            answer = known or self._answers.setdefault(question, Future())
        if known is None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001  whatever it is, all who wait must hear of it
                if self._asks_again:
                    with self._lock:
                        del self._answers[question]
                answer.set_exception(error)
        return answer.result()

    def put(self, question: Hashable, value: T) -> None:
        """Another answer from now on."""
        answer: Future[T] = Future()
        answer.set_result(value)
        with self._lock:
            self._answers[question] = answer
