"""Parts from another node that needs or has the same. Loaded only where there are peers: it brings HTTP along."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from trainctl.base.failure import Failure, Stranger, Unreachable
from trainctl.node.content.parts import Part
from trainctl.node.transfer.blob_client import BROKEN, SILENCE_SECONDS, BlobClient, Later
from trainctl.node.transfer.gathering import Buffer, Fetched, Fetcher, PassOn
from trainctl.node.transfer.places import Patience

_POLL_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_MOST_BREAKS = _MOST_LIES = 3


class Receiving:
    """A chunk of which a peer hands out what it has so far, answer by answer."""

    def __init__(self, part: Part, buffer: Buffer) -> None:
        self.part = part
        self.view = buffer.view(part.chunk.length)
        self.done = 0
        self._digest = hashlib.sha256()

    def arrived(self, count: int) -> None:
        """So many bytes more are in the view."""
        self._digest.update(self.view[self.done : self.done + count])
        self.done += count

    @property
    def complete(self) -> bool:
        """Whether all of it is there."""
        return self.done == len(self.view)

    @property
    def fetched(self) -> Fetched:
        """What came."""
        return Fetched(self.view, self._digest.hexdigest())


class FromPeer(Fetcher):
    """Fetches from another node, which may be getting it itself. One that is silent, slow or lies is asked no more.

    What is ``late`` it will have to be given first.
    """

    def __init__(
        self, peer: Mapping[str, Any], patience: Patience, late: Callable[[Part], bool]
    ) -> None:
        super().__init__(str(peer["node"]))
        silence = min(SILENCE_SECONDS, patience.seconds)
        self._client = BlobClient(peer, silence=silence)
        self._patience = patience
        self._late = late
        self._buffer = Buffer()
        self._breaks = 0
        self._lies = 0
        self._dropped = False
        self.stranger = ""
        """What is wrong with who answered in the peer's place, if somebody did."""
        self._until = 0.0
        self._ending = threading.Event()

    def fetch(self, parts: Sequence[Part], pass_on: PassOn) -> Iterator[Fetched]:
        """See Fetcher."""
        receiving = None if parts[0].packed else Receiving(parts[0], self._buffer)
        found: Dict[str, Fetched] = {}
        self._advanced()
        while not self._dropped and not self._ending.is_set():
            wanted = [one for one in parts if one.file.sha256 not in found]
            if not wanted or not self._ask(wanted, receiving, found):
                break
        for part in parts:
            yield found.get(part.file.sha256, Fetched(None))

    def wrong(self, part: Part) -> None:
        """See Fetcher."""
        self._lies += 1
        self._dropped = self._dropped or self._lies == _MOST_LIES

    def abort(self) -> None:
        """See Fetcher."""
        self._ending.set()
        self._client.abort()

    def close(self) -> None:
        """See Fetcher."""
        self._client.close()

    def _advanced(self) -> None:
        """Patience begins anew."""
        self._patience.moved = time.monotonic()
        self._until = self._patience.moved + self._patience.seconds

    def _ask(
        self,
        wanted: Sequence[Part],
        receiving: Optional[Receiving],
        found: Dict[str, Fetched],
    ) -> bool:
        """Ask once; whether it is worth asking again for what did not come."""
        now = time.monotonic()
        wait = max(0.0, min(_POLL_SECONDS, self._until - now))
        try:
            if receiving is None:
                coming = self._pack(wanted, found, wait)
            else:
                coming = self._receive(receiving, wait)
                if receiving.complete:
                    found[receiving.part.file.sha256] = receiving.fetched
        except socket.timeout:  # silent, or slow: it would be so for every part
            self._dropped = True
            return False
        except BROKEN:
            self._breaks += 1
            self._dropped = self._breaks == _MOST_BREAKS
            return True
        except Failure as error:
            coming = self._refused(error)
        self._breaks = 0
        return self._worth_waiting(wanted[0], coming)

    def _worth_waiting(self, part: Part, coming: bool) -> bool:
        """Whether to ask again for what did not come: it is on its way to the peer, or the peer's delivery may not have begun yet."""
        if coming and self._late(part):  # after much else: patience begins when nothing comes
            self._until = max(self._until, self._patience.moved + self._patience.seconds)
        now = time.monotonic()
        if not coming:
            if now > self._patience.began + self._patience.grace:
                return False
            self._ending.wait(_PAUSE_SECONDS)
        return now < self._until

    def _pack(self, wanted: Sequence[Part], found: Dict[str, Fetched], wait: float) -> bool:
        """Put what comes into ``found``; whether the peer is alive and brings the rest, or is only busy."""
        try:
            pack = self._client.pack([one.file.sha256 for one in wanted], wait)
        except Later as error:
            return self._pause(error)
        found.update((name, Fetched.of(data)) for name, data in pack.contents.items())
        return bool(pack.coming)

    def _receive(self, receiving: Receiving, wait: float) -> bool:
        """Receive what there is of a chunk; whether the rest is on its way, or the peer is only busy."""
        part, view = receiving.part, receiving.view
        until = time.monotonic() + wait + self._patience.seconds
        try:
            for count in self._client.read(
                part.file.sha256, part.chunk.offset + receiving.done, view[receiving.done :], wait
            ):
                receiving.arrived(count)
                self._advanced()
                if time.monotonic() > until:
                    raise socket.timeout("it takes too long")
        except Later as error:
            return self._pause(error)
        return True

    def _refused(self, error: Failure) -> bool:
        """It has nothing for us; False, like for all that isn't coming. Who isn't reached, or somebody else in its place, is not asked again."""
        if isinstance(error, Stranger):
            self.stranger = error.summary
        self._dropped = self._dropped or isinstance(error, (Stranger, Unreachable))
        return False

    def _pause(self, error: Later) -> bool:
        """Wait where the peer asks for it; True: it is worth asking again."""
        if not error.coming:
            self._ending.wait(max(error.seconds, _PAUSE_SECONDS))
        return True
