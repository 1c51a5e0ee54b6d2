"""Fetch from peers: other nodes that need or have the same listing."""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from trainctl.base.http import HttpError, HttpInterrupted, HttpStalled
from trainctl.base.listing import Listing
from trainctl.base.network.http_errors import PeerAuthError
from trainctl.base.network.object_server import MAX_PACKED_BYTES
from trainctl.errors import TrainctlError, UnknownOnNode
from trainctl.node.transfer.fetch_pool import (
    Fetcher,
    FetchResult,
    PassOnFn,
    TransferUnit,
    from_hex,
    has_bit,
    unit_lengths,
)
from trainctl.node.transfer.http_reader import SILENCE_SECONDS, ServerReader
from trainctl.node.transfer.object_readers import RetryAfter
from trainctl.store import keys

_NO_NODE = 2**16 - 1
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_MAX_INTERRUPTED = _MAX_CORRUPT = 3
_DEFAULT_TIMEOUT = 60.0
_GRACE_SECONDS = 15.0
_SLACK = 4


class PeerSchedule:
    """Which node to ask for each unit; the same on all nodes, without messages.

    The node that sends most determines when all are done, so loads are balanced. If some nodes have a unit, each other
    node asks the holder with the least to send. If none has it, the node with the least to send becomes its *owner*:
    it fetches the unit from the mirror and passes it on. An owner with more to send than the mean leaves some of the
    other nodes to a *relay*, the node with the least to send.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        """``holds``: by node, a bit per unit in hex; ValueError if invalid."""
        self._nodes = sorted(holds)
        self._all = range(len(self._nodes))
        self._me = self._nodes.index(me)
        lengths = array("I", unit_lengths(listing))
        self._held = [from_hex(holds[node], len(lengths)) for node in self._nodes]
        self._first, self._owner, self._relay = (
            array("H", [_NO_NODE]) * len(lengths) for _ in range(3)
        )
        self._sends = [0] * len(self._nodes)
        self._assign_holders(lengths)
        self._assign_owners(lengths)
        self._assign_relays(lengths)

    def sources(self, number: int) -> List[str]:
        """Nodes to ask for a unit, in order, before the mirror.

        Except for the first, the order is the same on all nodes, and a node asks only nodes before itself, so that no
        two wait for each other. Units of a node that has died are spread over the others.
        """
        holders, first = self._holders(number), self._first[number]
        preferred = _rotate(holders, number)
        if not holders:
            passing_on = (self._owner[number], self._relay[number])
            preferred = [node for node in passing_on if node != _NO_NODE]
        others = [node for node in self._all if node not in preferred]
        ranked = preferred + _rotate(others, number)
        nodes = ranked[: ranked.index(self._me)]
        if first in nodes:
            nodes.remove(first)
            nodes.insert(0, first)
        return [self._nodes[node] for node in nodes]

    def is_late(self, number: int) -> bool:
        """Whether the first node to ask will have to receive the unit itself: ask for others before."""
        return self._first[number] == self._relay[number] != _NO_NODE

    def _holders(self, number: int) -> List[int]:
        return [node for node, bits in enumerate(self._held) if has_bit(bits, number)]

    def _assign_holders(self, lengths: Sequence[int]) -> None:
        """Assign a holder to each other node; one holder for all small units."""
        held = [number for number in range(len(lengths)) if self._holders(number)]
        for turn, number in enumerate(held):
            holders, length = self._holders(number), lengths[number]
            holder = None
            for node in _rotate([node for node in self._all if node not in holders], turn):
                if holder is None or length >= MAX_PACKED_BYTES:
                    holder = min(holders, key=self._sends.__getitem__)
                self._sends[holder] += length
                if node == self._me:
                    self._first[number] = holder

    def _assign_owners(self, lengths: Sequence[int]) -> None:
        """Assign owners, counting half of what they could send, as relays may send the rest.

        So nodes with little begin to send at once, while the others send what they have.
        """
        loads = list(self._sends)
        receivers = len(self._nodes) - 1
        for number, length in enumerate(lengths):
            if not self._holders(number):
                owner = self._owner[number] = loads.index(min(loads))
                loads[owner] += length * receivers // 2
                self._sends[owner] += length * receivers
                if owner != self._me:
                    self._first[number] = owner

    def _assign_relays(self, lengths: Sequence[int]) -> None:
        """Assign relays evenly to the units of owners that would send more than the mean.

        An owner passes a unit on while it arrives, so it relays no more of each than it must.
        """
        sends = self._sends
        mean = sum(sends) // len(sends)
        owned = [0] * len(sends)
        for owner, length in zip(self._owner, lengths):
            if owner != _NO_NODE:
                owned[owner] += length
        excess = [-((mean - sent) // size) if size else 0 for sent, size in zip(sends, owned)]
        for number, length in enumerate(lengths):
            owner = self._owner[number]
            if owner == _NO_NODE or length < MAX_PACKED_BYTES or sends[owner] <= mean:
                continue
            relay = sends.index(min(sends))
            others = [node for node in self._all if node not in (owner, relay)]
            count = min((sends[owner] - sends[relay]) // (2 * length), excess[owner])
            receivers = _rotate(others, number)[:count]
            if receivers:
                self._relay[number] = relay
                sends[owner] -= length * len(receivers)
                sends[relay] += length * len(receivers)
            if self._me in receivers:
                self._first[number] = relay


def _rotate(nodes: Sequence[int], number: int) -> List[int]:
    shift = number % len(nodes) if nodes else 0
    return [*nodes[shift:], *nodes[:shift]]


class PeerTimeout:
    """Timeout for a peer: ``seconds``, or a multiple of the mirror's slowest chunk.

    With a slow mirror all peers are late, and reading their units from it would make it slower.
    """

    def __init__(self, seconds: Optional[float] = None) -> None:
        self._seconds = _DEFAULT_TIMEOUT if seconds is None else seconds
        self._slowest = 0.0
        self.grace_until = time.monotonic() + min(_GRACE_SECONDS, self._seconds)
        """Until then, deliveries of peers may not have started."""

    def record_mirror_time(self, seconds: float) -> None:
        """Record how long the mirror took for a chunk."""
        self._slowest = max(self._slowest, seconds)

    @property
    def seconds(self) -> float:
        """Timeout for one unit."""
        return max(self._seconds, _SLACK * self._slowest)


class PeerFetcher(Fetcher):
    """Fetches from another node; drops one that is slow, corrupt or unreachable."""

    def __init__(self, peer: Mapping[str, Any], peer_timeout: PeerTimeout) -> None:
        super().__init__(str(peer["node"]))
        self._reader = ServerReader(peer, read_timeout=min(SILENCE_SECONDS, peer_timeout.seconds))
        self._timeout = peer_timeout
        self._interrupted = self._corrupt = 0
        self._is_dropped = False
        self._until = 0.0
        self._aborted = threading.Event()
        self.auth_error = ""
        """Error if another server responds at the peer's address."""

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        first = units[0]
        chunk = None if first.is_small else _PeerChunk(first, self._view(first.chunk.length))
        results: Dict[str, FetchResult] = {}
        self._until = time.monotonic() + self._timeout.seconds
        while len(results) < len(units) and self._request(units, chunk, results):
            pass
        for unit in units:
            yield results.get(unit.file.sha256, FetchResult(None))

    def reject(self, unit: TransferUnit) -> None:
        self._corrupt += 1
        self._is_dropped = self._is_dropped or self._corrupt == _MAX_CORRUPT

    def abort(self) -> None:
        self._aborted.set()
        self._reader.abort()

    def close(self) -> None:
        self._reader.close()

    def _request(
        self,
        units: Sequence[TransferUnit],
        chunk: Optional[_PeerChunk],
        results: Dict[str, FetchResult],
    ) -> bool:
        """Send one request; True if another may return what is missing."""
        if self._is_dropped or self._aborted.is_set():
            return False
        try:
            if chunk:
                is_incoming = self._receive(chunk, results)
            else:
                missing = [unit.file.sha256 for unit in units if unit.file.sha256 not in results]
                blobs, is_incoming = self._reader.pack(missing, self._wait)
                results.update({name: FetchResult.of(data) for name, data in blobs.items()})
        except RetryAfter as error:
            is_incoming = True
            if not error.is_incoming:
                self._aborted.wait(max(error.seconds, _PAUSE_SECONDS))
        except HttpError as error:
            can_retry = isinstance(error, HttpInterrupted) and not isinstance(error, HttpStalled)
            self._interrupted += 1
            self._is_dropped = not can_retry or self._interrupted == _MAX_INTERRUPTED
            return not self._is_dropped
        except TrainctlError as error:
            is_incoming = False
            self._is_dropped = not isinstance(error, UnknownOnNode)
            self.auth_error = error.summary if isinstance(error, PeerAuthError) else ""
        self._interrupted = 0
        now = time.monotonic()
        if not is_incoming:
            if now > self._timeout.grace_until:
                return False
            self._aborted.wait(_PAUSE_SECONDS)
        return now < self._until

    @property
    def _wait(self) -> float:
        return max(0.0, min(_WAIT_SECONDS, self._until - time.monotonic()))

    def _receive(self, chunk: _PeerChunk, results: Dict[str, FetchResult]) -> bool:
        """Receive the bytes of a chunk that the peer has; it is fetching the rest."""
        wait = self._wait
        until = time.monotonic() + wait + self._timeout.seconds
        for count in self._reader.read(chunk.key, chunk.done, chunk.view[chunk.done :], wait):
            chunk.digest.update(chunk.view[chunk.done : chunk.done + count])
            chunk.done += count
            self._until = time.monotonic() + self._timeout.seconds
            if time.monotonic() > until:
                raise HttpStalled("timed out")
        if chunk.done == len(chunk.view):
            results[chunk.unit.file.sha256] = FetchResult(chunk.view, chunk.digest.hexdigest())
        return True


class _PeerChunk:
    """A chunk received in several responses, as the peer fetches it."""

    def __init__(self, unit: TransferUnit, view: memoryview) -> None:
        self.unit = unit
        self.key = keys.blob(unit.chunk.sha256)
        self.view = view
        self.done = 0
        self.digest = hashlib.sha256()
