"""Pieces that arrive by callbacks as iterators: of one source, or of several in the order in which they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from queue import Empty, Full, Queue
from typing import TypeVar

_PIECES = 16

Produce = Callable[[Callable[[bytes], None]], None]
"""Work that hands over bytes piece by piece."""


class _Abandoned(Exception):
    """The reader has left; nothing more is wanted."""


def pieces(produce: Produce, give_up: Callable[[], None] | None = None) -> Iterator[bytes]:
    """What ``produce`` hands over, as it comes. An error in it is raised here; leaving early ends it.

    It ends when it next hands over something, unless ``give_up`` makes it end before.
    """
    waiting: Queue[bytes | BaseException | None] = Queue(_PIECES)
    left = threading.Event()
    thread = threading.Thread(
        target=_work, args=(produce, waiting, left), name="pieces", daemon=True
    )
    thread.start()
    try:
        while isinstance(piece := waiting.get(), bytes):
            yield piece
        if piece is not None:
            raise piece
    finally:
        left.set()
        if thread.is_alive() and give_up is not None:
            give_up()
        while thread.is_alive():
            _drain(waiting)
            thread.join(0.05)


def _work(
    produce: Produce, waiting: Queue[bytes | BaseException | None], left: threading.Event
) -> None:
    def take(piece: bytes) -> None:
        if left.is_set():
            raise _Abandoned
        waiting.put(piece)

    end: BaseException | None = None
    try:
        produce(take)
    except _Abandoned:
        return
    except BaseException as error:  # noqa: BLE001 (handed to the reader, who raises it)
        end = error
    waiting.put(end)


def _drain(waiting: Queue[bytes | BaseException | None]) -> None:
    while not waiting.empty():
        waiting.get()


T = TypeVar("T")
_WAITING = 64
_LOOK_SECONDS = 0.2


class _Ended(Exception):
    """A source has nothing more."""


def as_they_come(sources: Sequence[Iterator[T]], give_up: Callable[[], None]) -> Iterator[T]:
    """What the sources give, a thread each and a bounded number waiting. The first error is raised here and ends all.

    ``give_up`` makes sources end that wait for something themselves.
    """
    waiting: Queue[T | BaseException] = Queue(_WAITING)
    left = threading.Event()
    threads = [
        threading.Thread(
            target=_merge_work, args=(source, waiting, left), name="merge", daemon=True
        )
        for source in sources
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            item = waiting.get()
            if isinstance(item, _Ended):
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        left.set()
        if any(thread.is_alive() for thread in threads):
            give_up()
        while any(thread.is_alive() for thread in threads):
            _merge_drain(waiting)


def begun(sources: Sequence[Iterator[T]]) -> list[Iterator[T]]:
    """The same sources, once each has given its first or said that it has none: who is slow to begin is waited for together with the others."""
    with ThreadPoolExecutor(max(1, len(sources)), thread_name_prefix="first") as pool:
        firsts = list(pool.map(lambda source: list(islice(source, 1)), sources))
    return [chain(first, source) for first, source in zip(firsts, sources, strict=True)]


def _merge_work(
    source: Iterator[T], waiting: Queue[T | BaseException], left: threading.Event
) -> None:
    end: BaseException = _Ended()
    try:
        for item in source:
            _put(waiting, item, left)
            if left.is_set():
                return
    except BaseException as error:  # noqa: BLE001 (handed to the reader, who raises it)
        end = error
    _put(waiting, end, left)


def _put(waiting: Queue[T | BaseException], item: T | BaseException, left: threading.Event) -> None:
    while not left.is_set():
        with suppress(Full):
            waiting.put(item, timeout=_LOOK_SECONDS)
            return


def _merge_drain(waiting: Queue[T | BaseException]) -> None:
    try:
        waiting.get(timeout=_LOOK_SECONDS)
    except Empty:
        return
