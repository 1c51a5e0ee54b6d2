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
_QUEUE_SIZE = 16
_POLL_SECONDS = 0.2

Producer = Callable[[Callable[[T], None]], None]
"""Work that hands over values one by one."""


class _ReaderClosedError(Exception):
    """The reader has left; nothing more is wanted."""


class _ProducerDoneError(Exception):
    """A producer has nothing more."""


def iterate_callbacks(
    produce: Producer[bytes], cancel: Callable[[], None] | None = None
) -> Iterator[bytes]:
    """What ``produce`` hands over, as it comes. An error in it is raised here; leaving early ends it.

    It ends when it next hands over something, unless ``cancel`` makes it end before.
    """
    return _merge_producers([produce], cancel)


def merge_by_arrival(sources: Sequence[Iterator[T]], cancel: Callable[[], None]) -> Iterator[T]:
    """Merge sources, read by a thread each, in the order of arrival. The first error is raised here and ends all.

    ``cancel`` makes sources end that wait for something themselves.
    """

    def reading(source: Iterator[T]) -> Producer[T]:
        def produce(take: Callable[[T], None]) -> None:
            for item in source:
                take(item)

        return produce

    return _merge_producers([reading(source) for source in sources], cancel)


def prefetch_first(sources: Sequence[Iterator[T]]) -> list[Iterator[T]]:
    """The same sources, once each has its first item or its end: slow ones are waited for together."""
    firsts = each(lambda source: list(islice(source, 1)), sources, len(sources))
    return [chain(first, source) for first, source in zip(firsts, sources, strict=True)]


class _MergeQueue(Generic[T]):
    """A bounded queue from several producers to one reader."""

    def __init__(self) -> None:
        self._waiting: Queue[T | BaseException] = Queue(_QUEUE_SIZE)
        self.reader_closed = threading.Event()
        """Set when the reader has left."""

    def run(self, work: Producer[T]) -> None:
        """Have a producer hand over its values, then its end or its error."""
        end: BaseException = _ProducerDoneError()
        try:
            work(self._put)
        except _ReaderClosedError:
            return
        except BaseException as error:  # noqa: BLE001 (raised in the reader)
            end = error
        with suppress(_ReaderClosedError):
            self._put(end)

    def read(self, running: int) -> Iterator[T]:
        """Yield what so many producers hand over, until all have ended."""
        while running:
            item = self._waiting.get()
            if isinstance(item, _ProducerDoneError):
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
        while not self.reader_closed.is_set():
            with suppress(Full):
                self._waiting.put(item, timeout=_POLL_SECONDS)
                return
        raise _ReaderClosedError


def _merge_producers(
    works: Sequence[Producer[T]], cancel: Callable[[], None] | None
) -> Iterator[T]:
    pipe = _MergeQueue[T]()
    threads = [
        threading.Thread(target=pipe.run, args=(work,), name="pieces", daemon=True)
        for work in works
    ]
    for thread in threads:
        thread.start()
    try:
        yield from pipe.read(len(threads))
    finally:
        pipe.reader_closed.set()
        if cancel is not None and any(thread.is_alive() for thread in threads):
            cancel()
        while any(thread.is_alive() for thread in threads):
            pipe.drain()
