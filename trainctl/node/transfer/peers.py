"""Fetch from other nodes that need or have the same listing: which of them to ask for what, and how."""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from trainctl.base.failure import Failure, PeerAuthError
from trainctl.base.http import HttpError, HttpInterrupted, HttpStalled
from trainctl.base.listing import Listing
from trainctl.base.network.object_server import MAX_PACKED_BYTES
from trainctl.node.transfer.fetch_pool import ChunkBuffer, Fetcher, FetchResult, PassOnFn
from trainctl.node.transfer.http_reader import SILENCE_SECONDS, ServerReader
from trainctl.node.transfer.object_readers import RetryAfter
from trainctl.node.transfer.transfer_units import TransferUnit, from_hex, has_bit, unit_lengths
from trainctl.store import keys

_NO_NODE = 2**16 - 1
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_MAX_INTERRUPTED = _MAX_CORRUPT = 3
_DEFAULT_TIMEOUT = 60.0
_GRACE_SECONDS = 15.0
_SLACK = 4


class PeerSchedule:
    """Whom a node asks for each part. All nodes compute the same, so they agree without a message.

    The node that sends most decides when all are done, so loads are balanced. Of a part that some hold, each of the
    others asks the holder with the least to send. A part that none holds has an *owner*, the node with the least to
    send, which fetches it from the mirror and passes it on to all others.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        """``holds``: by node a bit per part, in hex; ValueError if it is not a hex number."""
        self._nodes = sorted(holds)
        self._all = range(len(self._nodes))
        self._me = self._nodes.index(me)
        lengths = array("I", unit_lengths(listing))
        self._held = [from_hex(holds[node], len(lengths)) for node in self._nodes]
        self._first = array("H", [_NO_NODE]) * len(lengths)
        self._sends = [0] * len(self._nodes)
        for number, length in enumerate(lengths):
            self._assign_holders(number, length)
        for number, length in enumerate(lengths):
            if not self._holders(number):
                owner = self._first[number] = self._sends.index(min(self._sends))
                self._sends[owner] += length * (len(self._nodes) - 1)

    def places(self, number: int) -> List[str]:
        """Whom this node asks for the part of that number, one after another, before the mirror.

        But for whom it asks first the order is the same on all nodes, and a node asks none behind itself: so no two
        wait for each other. The parts of a node that has died are spread over the others.
        """
        holders, first = self._holders(number), self._first[number]
        known = _rotate(holders, number) if holders else [first]
        ranked = known + _rotate([node for node in self._all if node not in known], number)
        asked = ranked[: ranked.index(self._me)]
        if first in asked:
            asked.remove(first)
            asked.insert(0, first)
        return [self._nodes[node] for node in asked]

    def _holders(self, number: int) -> List[int]:
        return [node for node, bits in enumerate(self._held) if has_bit(bits, number)]

    def _assign_holders(self, number: int, length: int) -> None:
        """Have each of the other nodes ask a holder. Small files are fetched together: all ask the same one."""
        holders = self._holders(number)
        receivers = _rotate([node for node in self._all if node not in holders], number)
        holder = None
        for node in receivers if holders else ():
            if holder is None or length >= MAX_PACKED_BYTES:
                holder = min(holders, key=self._sends.__getitem__)
            self._sends[holder] += length
            if node == self._me:
                self._first[number] = holder


def _rotate(nodes: Sequence[int], number: int) -> List[int]:
    turn = number % len(nodes) if nodes else 0
    return [*nodes[turn:], *nodes[:turn]]


class PeerTimeout:
    """How long to wait for a peer: at least ``seconds``, and some times as long as the slowest chunk from the mirror.

    A slow mirror makes all peers late, and to ask it for their parts too would make it slower.
    """

    def __init__(self, seconds: Optional[float] = None) -> None:
        self._seconds = _DEFAULT_TIMEOUT if seconds is None else seconds
        self._slowest = 0.0
        self.grace_until = time.monotonic() + min(_GRACE_SECONDS, self._seconds)
        """Until then the deliveries of peers may not have begun."""

    def record_mirror_time(self, seconds: float) -> None:
        """Note how long the mirror took for a chunk."""
        self._slowest = max(self._slowest, seconds)

    @property
    def seconds(self) -> float:
        """The longest wait for one part."""
        return max(self._seconds, _SLACK * self._slowest)


class PeerFetcher(Fetcher):
    """Fetches from another node, which may be fetching the same. One that is silent, slow or wrong isn't asked again."""

    def __init__(self, peer: Mapping[str, Any], peer_timeout: PeerTimeout) -> None:
        super().__init__(str(peer["node"]))
        self._reader = ServerReader(peer, read_timeout=min(SILENCE_SECONDS, peer_timeout.seconds))
        self._patience = peer_timeout
        self._buffer = ChunkBuffer()
        self._cut = self._wrong = 0
        self._is_dropped = False
        self._until = 0.0
        self._ending = threading.Event()
        self.auth_error = ""
        """Why the server in the peer's place is not the peer."""

    def fetch(self, parts: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        """See Fetcher."""
        chunk = None if parts[0].is_small else _PeerChunk(parts[0], self._buffer)
        found: Dict[str, FetchResult] = {}
        self._until = time.monotonic() + self._patience.seconds
        while len(found) < len(parts) and self._ask(parts, chunk, found):
            pass
        for part in parts:
            yield found.get(part.file.sha256, FetchResult(None))

    def reject(self, part: TransferUnit) -> None:
        """See Fetcher."""
        self._wrong += 1
        self._is_dropped = self._is_dropped or self._wrong == _MAX_CORRUPT

    def abort(self) -> None:
        """See Fetcher."""
        self._ending.set()
        self._reader.abort()

    def close(self) -> None:
        """See Fetcher."""
        self._reader.close()

    def _ask(
        self,
        parts: Sequence[TransferUnit],
        chunk: Optional[_PeerChunk],
        found: Dict[str, FetchResult],
    ) -> bool:
        """Ask once; whether to ask again for what did not come."""
        if self._is_dropped or self._ending.is_set():
            return False
        try:
            is_incoming = (
                self._receive(chunk, found) if chunk else self._receive_small(parts, found)
            )
        except RetryAfter as error:
            is_incoming = True
            if not error.coming:
                self._ending.wait(max(error.seconds, _PAUSE_SECONDS))
        except HttpError as error:
            is_cut = isinstance(error, HttpInterrupted) and not isinstance(error, HttpStalled)
            self._cut += 1
            self._is_dropped = not is_cut or self._cut == _MAX_INTERRUPTED
            return not self._is_dropped
        except Failure as error:
            is_incoming = False
            self._is_dropped = error.kind != "missing"
            self.auth_error = error.summary if isinstance(error, PeerAuthError) else ""
        self._cut = 0
        now = time.monotonic()
        if not is_incoming:
            if now > self._patience.grace_until:
                return False
            self._ending.wait(_PAUSE_SECONDS)
        return now < self._until

    @property
    def _wait(self) -> float:
        return max(0.0, min(_WAIT_SECONDS, self._until - time.monotonic()))

    def _receive_small(self, parts: Sequence[TransferUnit], found: Dict[str, FetchResult]) -> bool:
        """Receive the files that the peer has; whether the others are on their way to it."""
        wanted = [part.file.sha256 for part in parts if part.file.sha256 not in found]
        pack = self._reader.pack(wanted, self._wait)
        found.update((sha256, FetchResult.of(data)) for sha256, data in pack.contents.items())
        return bool(pack.coming)

    def _receive(self, chunk: _PeerChunk, found: Dict[str, FetchResult]) -> bool:
        """Receive what the peer has of a chunk. True: the rest is on its way to it."""
        wait = self._wait
        until = time.monotonic() + wait + self._patience.seconds
        for count in self._reader.read(chunk.key, chunk.done, chunk.view[chunk.done :], wait):
            chunk.arrived(count)
            self._until = time.monotonic() + self._patience.seconds
            if time.monotonic() > until:
                raise HttpStalled("it takes too long")
        if chunk.done == len(chunk.view):
            found[chunk.part.file.sha256] = FetchResult(chunk.view, chunk.digest.hexdigest())
        return True


class _PeerChunk:
    """A chunk of which a peer sends what it has so far, response by response."""

    def __init__(self, part: TransferUnit, buffer: ChunkBuffer) -> None:
        self.part = part
        self.key = keys.blob(part.chunk.sha256)
        self.view = buffer.view(part.chunk.length)
        self.done = 0
        self.digest = hashlib.sha256()

    def arrived(self, count: int) -> None:
        """Count more bytes that are in the view."""
        self.digest.update(self.view[self.done : self.done + count])
        self.done += count
