"""Turning "call me with each piece" into an iterator, with a bounded number of pieces in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Queue

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
