"""Sets of very many contents."""

from __future__ import annotations

from typing import Iterable, Iterator

from trainctl.node.system.numbers import Numbers

_MOST = 2**64 - 1


class Digests:
    """Contents by a number of 64 bits each, which this process makes of their names as no other does.

    Two that have the same are one here: among ten million contents there are such two once in 370,000 times. So it is asked where a wrong yes
    costs little (one stays for a while, is not counted, or is not hashed as another was), never whether anything is here or may go.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers = Numbers()
        for name in names:
            self.add(name)

    def add(self, sha256: str) -> bool:
        """Put it in; whether it was not there before."""
        return self._numbers.add(hash(sha256) & _MOST)

    def __contains__(self, sha256: str) -> bool:
        return hash(sha256) & _MOST in self._numbers


def each_once(names: Iterable[str]) -> Iterator[str]:
    """The contents in their order, without those that came before."""
    return filter(Digests().add, names)
