"""Run a function over many values at the same time, with the results in the order of the values."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Deque, Iterable, Iterator, Tuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(act: Callable[[T], R], values: Iterable[T], at_once: int) -> Iterator[Tuple[T, R]]:
    """Each value and its result; at most ``at_once`` are under way or wait to be taken. The first error is raised."""
    pending: Deque[Tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="parallel") as pool:
        for value in values:
            pending.append((value, pool.submit(act, value)))
            if len(pending) == at_once:
                first, result = pending.popleft()
                yield first, result.result()
        while pending:
            first, result = pending.popleft()
            yield first, result.result()
