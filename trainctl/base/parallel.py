"""Run functions in threads, with results in order."""

from __future__ import annotations

import threading
from collections import deque
from itertools import chain, islice
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    Optional,
    Tuple,
    TypeVar,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")


class BackgroundCall(Generic[R]):
    """A call in a thread of its own; a context manager, which waits for its end.

    For a few calls: ``concurrent.futures`` takes as long to import as twenty modules.
    """

    def __init__(self, act: Callable[..., R], *arguments: Any) -> None:
        self._results: List[R] = []
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, args=(act, arguments))
        self._thread.start()

    def __enter__(self) -> BackgroundCall[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self, act: Callable[..., R], arguments: Tuple[Any, ...]) -> None:
        try:
            self._results.append(act(*arguments))
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            self._error = error

    def result(self) -> R:
        """Wait for the end; return what the call returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]


def each(act: Callable[[T], R], values: Iterable[T], at_once: int) -> List[R]:
    """Return the result for each value, in order; raise the first error, after which no call is begun."""
    values = list(values)
    if len(values) < 2:  # in this thread, which Ctrl-C interrupts
        return [act(value) for value in values]
    results: Dict[int, R] = {}
    errors: Dict[int, BaseException] = {}
    numbers = iter(range(len(values)))  # each number goes to one of the threads

    def work() -> None:
        for number in numbers:
            try:
                results[number] = act(values[number])
            except BaseException as error:  # noqa: BLE001, PERF203  raised below
                errors[number] = error
                deque(numbers, maxlen=0)

    threads = [BackgroundCall(work) for _ in values[:at_once]]
    try:
        for thread in threads:
            thread.result()
    finally:
        deque(numbers, maxlen=0)  # after Ctrl-C
        for thread in threads:
            thread.result()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(values))]


def map_ordered(act: Callable[[T], R], values: Iterable[T], at_once: int) -> Iterator[Tuple[T, R]]:
    """Yield each value with its result, in order, ``at_once`` ahead at most."""
    waiting = iter(values)
    first = list(islice(waiting, 2))
    if len(first) < 2:
        yield from ((value, act(value)) for value in first)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    pending: Deque[Tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="parallel") as pool:
        for value in chain(first, waiting):
            pending.append((value, pool.submit(act, value)))
            if len(pending) == at_once:
                done, result = pending.popleft()
                yield done, result.result()
        while pending:
            done, result = pending.popleft()
            yield done, result.result()
