"""Fetching by many threads: every part is asked for along its line of places until one hands it out right."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from trainctl.base.listing import CHUNK_BYTES
from trainctl.node.content.parts import Part

_MOST_PACKED = 128
_PACK_BYTES = 4 * 2**20
MIRROR = ""
"""The name of the last place in every line."""

Data = Union[bytearray, memoryview]
PassOn = Callable[[Part, int, Data], None]
"""Called, by many threads, with bytes of a large part that is on its way, not verified, and where in it they begin."""
Keep = Callable[[Part, Data, str], None]
"""Called, by many threads, with a part, its verified bytes, and the place they came from."""


class Fetched(NamedTuple):
    """What came of a part, and the sha256 that it has."""

    data: Optional[Data]
    sha256: str = ""

    @classmethod
    def of(cls, data: Optional[Data]) -> Fetched:
        """With the digest of what came."""
        return cls(data, "" if data is None else hashlib.sha256(data).hexdigest())


class Buffer:
    """Room for one chunk, used for one after another: fresh memory costs more than what is done with it."""

    def __init__(self) -> None:
        self._data = bytearray()

    def view(self, length: int) -> memoryview:
        """So much of it; what was there before is gone."""
        if not self._data:
            self._data = bytearray(CHUNK_BYTES)
        return memoryview(self._data)[:length]


class Fetcher:
    """Fetches parts from one place, by one connection, in one thread."""

    def __init__(self, place: str) -> None:
        self.place = place

    def fetch(self, parts: Sequence[Part], pass_on: PassOn) -> Iterator[Fetched]:
        """The bytes of each part, one large or several small ones; None for what is not to be had here.

        They are good until the next is asked for. What is worth passing on before it is all there is passed on.
        """
        raise NotImplementedError

    def wrong(self, part: Part) -> None:
        """What was handed out is not what the listing says. Failure where nobody else can be asked."""
        raise NotImplementedError

    def settle(self) -> None:
        """A round has ended: nobody asks for more of its parts here."""

    def abort(self) -> None:
        """Give up what is under way, from another thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what is held open."""
        raise NotImplementedError


class Order:
    """A part, and the places where it is still to be asked for."""

    def __init__(self, part: Part, line: List[str]) -> None:
        self.part = part
        self.line: Deque[str] = deque([*line, MIRROR])


class Gathering:
    """One round of fetching. The first error of any thread ends it and is raised."""

    def __init__(
        self, fetchers: Sequence[Fetcher], keep: Keep, pass_on: PassOn = lambda *_: None
    ) -> None:
        self._fetchers = fetchers
        self._keep = keep
        self._pass_on = pass_on
        self._changed = threading.Condition()
        self._queues: Dict[str, Deque[Order]] = {one.place: deque() for one in fetchers}
        self._left = 0
        self._error: Optional[Exception] = None

    def run(self, orders: Sequence[Order]) -> None:
        """Fetch all of it."""
        for order in orders:
            self._queue(order)
        self._left = len(orders)
        threads = [
            threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._fetchers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in self._fetchers:
            one.settle()
        if self._error is not None:
            raise self._error

    def _queue(self, order: Order) -> None:
        while order.line[0] not in self._queues:
            order.line.popleft()
        self._queues[order.line[0]].append(order)

    def _work(self, fetcher: Fetcher) -> None:
        try:
            while True:
                orders = self._next(fetcher.place)
                if not orders:
                    return
                found = fetcher.fetch([order.part for order in orders], self._pass_on)
                for order, fetched in zip(orders, found):
                    self._settle(fetcher, order, fetched)
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            self._fail(error)

    def _next(self, place: str) -> List[Order]:
        """What to fetch next; nothing when all is done, or in vain."""
        queue = self._queues[place]
        with self._changed:
            while not queue and self._left and self._error is None:
                self._changed.wait()
            if self._error is not None or not queue:
                return []
            orders = [queue.popleft()]
            size = orders[0].part.file.size
            while orders[0].part.packed and queue and queue[0].part.packed:
                size += queue[0].part.file.size
                if len(orders) == _MOST_PACKED or size > _PACK_BYTES:
                    break
                orders.append(queue.popleft())
            return orders

    def _settle(self, fetcher: Fetcher, order: Order, fetched: Fetched) -> None:
        right = fetched.sha256 == order.part.chunk.sha256
        if fetched.data is not None and right:
            self._keep(order.part, fetched.data, fetcher.place)
        elif fetched.data is not None:
            fetcher.wrong(order.part)
        with self._changed:
            if right:
                self._left -= 1
            else:
                order.line.popleft()
                self._queue(order)
            if not right or not self._left:
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        for fetcher in self._fetchers:
            fetcher.abort()
