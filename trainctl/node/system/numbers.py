"""A set of very many numbers."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Dict

_SHELVES = 4096


class Numbers:
    """Numbers below 2**64 that are spread evenly, in 8 bytes each: sorted, on shelves so short that there is little to move for a new one."""

    def __init__(self) -> None:
        self._shelves: Dict[int, array[int]] = {}

    def add(self, number: int) -> bool:
        """Put it in; whether it was not there before."""
        key = number % _SHELVES
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = array("Q")
        at = bisect_left(shelf, number)
        if at < len(shelf) and shelf[at] == number:
            return False
        shelf.insert(at, number)
        return True

    def __contains__(self, number: int) -> bool:
        shelf = self._shelves.get(number % _SHELVES, ())
        at = bisect_left(shelf, number)
        return at < len(shelf) and shelf[at] == number
