"""Iterators over what arrives by callbacks or from several sources at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

from trainctl.base.parallel import each

T = TypeVar("T")
_WAITING = 16
_LOOK_SECONDS = 0.2

Produce = Callable[[Callable[[T], None]], None]
"""Work that hands over values one by one."""


class _AbandonedError(Exception):
    """The reader has left; nothing more is wanted."""


class _EndedError(Exception):
    """A producer has nothing more."""


def pieces(produce: Produce[bytes], give_up: Callable[[], None] | None = None) -> Iterator[bytes]:
    """What ``produce`` hands over, as it comes. An error in it is raised here; leaving early ends it.

    It ends when it next hands over something, unless ``give_up`` makes it end before.
    """
    return _arriving([produce], give_up)


def as_they_come(sources: Sequence[Iterator[T]], give_up: Callable[[], None]) -> Iterator[T]:
    """Merge sources, read by a thread each, in the order of arrival. The first error is raised here and ends all.

    ``give_up`` makes sources end that wait for something themselves.
    """

    def reading(source: Iterator[T]) -> Produce[T]:
        def produce(take: Callable[[T], None]) -> None:
            for item in source:
                take(item)

        return produce

    return _arriving([reading(source) for source in sources], give_up)


def begun(sources: Sequence[Iterator[T]]) -> list[Iterator[T]]:
    """The same sources, once each has its first item or its end: slow ones are waited for together."""
    firsts = each(lambda source: list(islice(source, 1)), sources, len(sources))
    return [chain(first, source) for first, source in zip(firsts, sources, strict=True)]


class _Pipe(Generic[T]):
    """A bounded queue from several producers to one reader."""

    def __init__(self) -> None:
        self._waiting: Queue[T | BaseException] = Queue(_WAITING)
        self.left = threading.Event()
        """Set when the reader has left."""

    def run(self, work: Produce[T]) -> None:
        """Have a producer hand over its values, then its end or its error."""
        end: BaseException = _EndedError()
        try:
            work(self._put)
        except _AbandonedError:
            return
        except BaseException as error:  # noqa: BLE001 (raised in the reader)
            end = error
        with suppress(_AbandonedError):
            self._put(end)

    def read(self, running: int) -> Iterator[T]:
        """Yield what so many producers hand over, until all have ended."""
        while running:
            item = self._waiting.get()
            if isinstance(item, _EndedError):
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def drain(self) -> None:
        """Drop an item, so that a producer that waits for room sees that the reader has left."""
        with suppress(Empty):
            self._waiting.get(timeout=0.05)

    def _put(self, item: T | BaseException) -> None:
        while not self.left.is_set():
            with suppress(Full):
                self._waiting.put(item, timeout=_LOOK_SECONDS)
                return
        raise _AbandonedError


def _arriving(works: Sequence[Produce[T]], give_up: Callable[[], None] | None) -> Iterator[T]:
    pipe = _Pipe[T]()
    threads = [
        threading.Thread(target=pipe.run, args=(work,), name="pieces", daemon=True)
        for work in works
    ]
    for thread in threads:
        thread.start()
    try:
        yield from pipe.read(len(threads))
    finally:
        pipe.left.set()
        if give_up is not None and any(thread.is_alive() for thread in threads):
            give_up()
        while any(thread.is_alive() for thread in threads):
            pipe.drain()
