"""Cache that computes each value once, also under concurrent requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Flight(Generic[T]):
    """A computation: what it returned or raised, when it has ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.values: list[T] = []
        self.error: BaseException | None = None


class SingleFlight(Generic[T]):
    """Thread-safe cache of results by key.

    Exceptions are cached, too. With ``forget_errors``, only threads that already wait get the exception.
    """

    def __init__(self, *, forget_errors: bool = False) -> None:
        self._forget_errors = forget_errors
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result for the key; the first thread computes it, the others wait."""
        with self._lock:
            is_first = key not in self._flights
            flight = self._flights.setdefault(key, _Flight())
        if is_first:
            try:
                flight.values.append(compute())
            except BaseException as error:  # noqa: BLE001  raised in all waiting threads
                if self._forget_errors:
                    with self._lock:
                        del self._flights[key]
                flight.error = error
            flight.ended.set()
        flight.ended.wait()
        if flight.error is not None:
            raise flight.error
        return flight.values[0]

    def put(self, key: Hashable, value: T) -> None:
        """Set the result for the key."""
        flight: _Flight[T] = _Flight()
        flight.values.append(value)
        flight.ended.set()
        with self._lock:
            self._flights[key] = flight
