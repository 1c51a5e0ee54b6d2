"""Run a function over many values in threads, with results in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Iterable, Iterator, List, Tuple, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")


def each(act: Callable[[T], R], values: Iterable[T], at_once: int) -> List[R]:
    """Return the result for each value, in order; raise the first error."""
    values = list(values)
    if len(values) < 2:  # in this thread, which Ctrl-C interrupts
        return [act(value) for value in values]
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(at_once, thread_name_prefix="each") as pool:
        return list(pool.map(act, values))


def map_ordered(act: Callable[[T], R], values: Iterable[T], at_once: int) -> Iterator[Tuple[T, R]]:
    """Yield each value with its result, in order, ``at_once`` ahead at most."""
    from concurrent.futures import ThreadPoolExecutor

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
