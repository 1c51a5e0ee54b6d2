"""Memory for chunks on their way into a bucket, and who has how much of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainctl.weights.mirror.reception import stopped

_POLL_SECONDS = 0.2


class Room:
    """So many bytes, which all files share. ``halt`` ends every wait, by Interrupted."""

    def __init__(self, size: int, halt: threading.Event) -> None:
        self._free = size
        self._changed = threading.Condition()
        self._halt = halt

    def take(self, size: int, otherwise: Callable[[], bool] = lambda: False) -> bool:
        """Wait for that much; False as soon as ``otherwise`` says that it isn't needed any more."""
        with self._changed:
            while not otherwise():
                if size <= self._free:
                    self._free -= size
                    return True
                if self._halt.is_set():
                    raise stopped()
                self._changed.wait(_POLL_SECONDS)
        return False

    def give_back(self, size: int) -> None:
        """Others may have it."""
        with self._changed:
            self._free += size
            self._changed.notify_all()


class Seat:
    """One file's room: for the chunk whose turn it is it has room of its own from ``begin`` to ``end``, beside what nobody else has.

    What a file asks upstream for holds a place at the gate there. Without room of its own it might wait for that of others amid an
    answer, and these for its place, as after their connections broke.
    """

    def __init__(self, room: Room, largest: int) -> None:
        self._room = room
        self._largest = largest
        self._turn = 0
        self._own: int | None = None
        """The chunk that has the file's own room."""
        self._shared: dict[int, int] = {}
        self._has_begun = False

    def begin(self, turn: int) -> None:
        """Wait until there is room for the file; ``turn`` is the number of its first chunk that is to come."""
        self._turn = turn
        self._has_begun = self._room.take(self._largest)

    def take(self, number: int, size: int) -> None:
        """Wait until there is room for a chunk."""
        if self._room.take(size, lambda: self._turn == number and self._own is None):
            self._shared[number] = size
        else:
            self._own = number

    def passed(self, number: int) -> None:
        """It is the turn of the chunk after that one."""
        self._turn = number + 1
        self._room.give_back(0)

    def give_back(self, number: int) -> None:
        """A chunk is out of memory."""
        if self._own == number:
            self._own = None
        self._room.give_back(self._shared.pop(number, 0))

    def end(self) -> None:
        """Give all of it back."""
        if self._has_begun:
            self._has_begun = False
            self._room.give_back(self._largest)
