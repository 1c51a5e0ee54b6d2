"""Iterators over values from callbacks or several sources at once."""

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
"""Call a function with each value."""


class _ReaderClosedError(Exception):
    """The reader has closed the queue."""


class _ProducerDoneError(Exception):
    """A producer has finished."""


def iterate_callbacks(
    *producers: Producer[T], cancel: Callable[[], None] | None = None
) -> Iterator[T]:
    """Yield the values of producers, each run by a thread, in order of arrival; raise the first error.

    If the reader stops early, a producer ends at its next value, or when ``cancel`` is called.
    """
    pipe = _MergeQueue[T]()
    threads = [
        threading.Thread(target=pipe.run, args=(producer,), name="producer", daemon=True)
        for producer in producers
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


def prefetch_first(sources: Sequence[Iterator[T]]) -> list[Iterator[T]]:
    """Wait until each source has its first item or has ended."""
    firsts = each(lambda source: list(islice(source, 1)), sources, len(sources))
    return [chain(first, source) for first, source in zip(firsts, sources, strict=True)]


class _MergeQueue(Generic[T]):
    """A bounded queue from several producers to one reader."""

    def __init__(self) -> None:
        self._waiting: Queue[T | BaseException] = Queue(_QUEUE_SIZE)
        self.reader_closed = threading.Event()
        """Set when the reader has stopped."""

    def run(self, produce: Producer[T]) -> None:
        """Run a producer; put its values, then its end or error."""
        end: BaseException = _ProducerDoneError()
        try:
            produce(self._put)
        except _ReaderClosedError:
            return
        except BaseException as error:  # noqa: BLE001 (raised in the reader)
            end = error
        with suppress(_ReaderClosedError):
            self._put(end)

    def read(self, running: int) -> Iterator[T]:
        """Yield the values of the running producers until all have ended."""
        while running:
            item = self._waiting.get()
            if isinstance(item, _ProducerDoneError):
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def drain(self) -> None:
        """Drop an item to unblock a producer."""
        with suppress(Empty):
            self._waiting.get(timeout=0.05)

    def _put(self, item: T | BaseException) -> None:
        while not self.reader_closed.is_set():
            with suppress(Full):
                self._waiting.put(item, timeout=_POLL_SECONDS)
                return
        raise _ReaderClosedError
