"""Run a function over many values at the same time, with the results in the order of the values."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Deque, Iterable, Iterator, List, Tuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(act: Callable[[T], R], values: Iterable[T], at_once: int) -> List[R]:
    """The result for each value, in order; at most ``at_once`` are under way. The first error is raised.

    A single one is done in this thread, where Ctrl-C ends it.
    """
    values = list(values)
    if len(values) < 2:
        return [act(value) for value in values]
    with ThreadPoolExecutor(at_once, thread_name_prefix="each") as pool:
        return list(pool.map(act, values))


def map_ordered(act: Callable[[T], R], values: Iterable[T], at_once: int) -> Iterator[Tuple[T, R]]:
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
