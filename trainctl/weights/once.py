"""A question that many have at the same time, asked once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Answers by what was asked, errors among them; safe to use from many threads."""

    def __init__(self) -> None:
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
                answer.set_exception(error)
        return answer.result()
