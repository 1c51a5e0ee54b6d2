"""Cache that computes each value once, also under concurrent requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Thread-safe cache of results by key.

    Exceptions are cached, too. With ``forget_errors``, only threads that already wait get the exception.
    """

    def __init__(self, *, forget_errors: bool = False) -> None:
        self._forget_errors = forget_errors
        self._lock = threading.Lock()
        self._futures: dict[Hashable, Future[T]] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result for the key; the first thread computes it, the others wait."""
        from concurrent.futures import Future  # slow to import

        with self._lock:
            is_first = key not in self._futures
            future = self._futures.setdefault(key, Future())
        if is_first:
            try:
                future.set_result(compute())
            except BaseException as error:  # noqa: BLE001  raised in all waiting threads
                if self._forget_errors:
                    with self._lock:
                        del self._futures[key]
                future.set_exception(error)
        return future.result()

    def put(self, key: Hashable, value: T) -> None:
        """Set the result for the key."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        future.set_result(value)
        with self._lock:
            self._futures[key] = future
