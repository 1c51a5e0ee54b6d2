"""Calls that many threads make at the same time, made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Results by question; safe to use from many threads.

    An exception is a result, too; with ``forget_errors`` only for threads that already wait for it.
    """

    def __init__(self, *, forget_errors: bool = False) -> None:
        self._forget_errors = forget_errors
        self._lock = threading.Lock()
        self._futures: dict[Hashable, Future[T]] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of the first thread with this question, waiting for it if need be."""
        with self._lock:
            known = self._futures.get(key)
            future = known or self._futures.setdefault(key, Future())
        if known is None:
            try:
                future.set_result(compute())
            except BaseException as error:  # noqa: BLE001  all waiting threads get it
                if self._forget_errors:
                    with self._lock:
                        del self._futures[key]
                future.set_exception(error)
        return future.result()

    def put(self, key: Hashable, value: T) -> None:
        """Set the result."""
        future: Future[T] = Future()
        future.set_result(value)
        with self._lock:
            self._futures[key] = future
