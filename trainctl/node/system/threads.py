"""The same work for each of many things, by several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, TypeVar

Thing = TypeVar("Thing")


def for_each(work: Callable[[Thing], None], things: Iterable[Thing], count: int) -> None:
    """Have so many threads do the work, each taking one thing after another. After the first error, which is raised, none is begun."""
    left = _Shared(things)

    def some() -> None:
        try:
            for thing in left:
                work(thing)
        finally:
            left.end()

    with ThreadPoolExecutor(count) as pool:
        workers = [pool.submit(some) for _ in range(count)]
        try:
            for worker in workers:
                worker.result()
        finally:
            left.end()


class _Shared(Iterator[Thing]):
    """An iterator that several threads take from, until one of them ends it."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._things = iter(things)
        self._lock = threading.Lock()

    def __next__(self) -> Thing:
        with self._lock:
            return next(self._things)

    def end(self) -> None:
        """Nobody is given anything more."""
        with self._lock:
            self._things = iter(())
