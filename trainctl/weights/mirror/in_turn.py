"""Many things done at the same time, whose results come one after another, however many there are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_turn(
    act: Callable[[T], R],
    values: Iterable[T],
    most: int = 32,
    halt: threading.Event | None = None,
) -> Iterator[tuple[T, R]]:
    """Each value and its result, in order, however many there are; the first error is raised.

    ``halt`` is set where it ends early, before what is under way is waited for.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(most, thread_name_prefix="in-turn") as pool:
        try:
            for value in values:
                waiting.append((value, pool.submit(act, value)))
                if len(waiting) == most:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        except BaseException:
            if halt is not None:
                halt.set()
            raise
