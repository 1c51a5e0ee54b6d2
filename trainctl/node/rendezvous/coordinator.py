"""Rank 0's helper, which the other ranks call and which sends all of them what the rules decide, and the port of the job itself."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from typing import Dict, List, Optional, Sequence

from trainctl.base.network.listener import bind_first_free
from trainctl.node.rendezvous.channel import (
    AuthenticatedConnection,
    DisconnectTimeouts,
    HelperPipe,
    ReliableChannel,
    Value,
)
from trainctl.node.rendezvous.coordinator_state import CoordinatorState

_MAX_UNAUTHENTICATED = 64
"""How many connections may be open that have not said yet who they are."""

_AUTH_TIMEOUT = 10.0
_FAREWELL_SECONDS = 10.0


class _RankConnection:
    """One rank as the coordinator knows it."""

    def __init__(self, now: float) -> None:
        self.channel = ReliableChannel()
        self.wire: Optional[AuthenticatedConnection] = None
        self.heard_at = self.closed_at = now
        self.lost = False


class Coordinator:
    """Hears and tells until it is over and everybody knows. Rank 0 itself speaks by the helper's line."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: str,
        generation: int,
        rules: CoordinatorState,
        limits: DisconnectTimeouts,
    ) -> None:
        self._listeners = listeners
        self._token = token
        self._generation = generation
        self._rules = rules
        self._limits = limits
        self._unauthenticated: Dict[AuthenticatedConnection, float] = {}
        self._ranks: Dict[int, _RankConnection] = {}
        self._pulsed = 0.0
        self._over_at: Optional[float] = None

    def work(self, line: HelperPipe, host: str) -> None:
        """For as long as the helper lives."""
        self._rules.join(0, host, ())
        while not self._done(line):
            self._wait(line)
            now = time.monotonic()
            for value in line.arrived():
                self._rules.receive(0, value, now)
            self._accept(now)
            self._read_unauthenticated(now)
            self._hear_ranks(now)
            self._watch(now)
            self._rules.tick(now)
            self._tell(line)
            self._pulse(now)

    def _done(self, line: HelperPipe) -> bool:
        """It is over, and each rank that can be told has heard it."""
        if not line.open:
            return True
        if not self._rules.over:
            return False
        self._over_at = self._over_at or time.monotonic()
        told = all(rank.channel.all_heard for rank in self._ranks.values() if not rank.lost)
        return told or time.monotonic() - self._over_at > _FAREWELL_SECONDS

    def _wait(self, line: HelperPipe) -> None:
        wires = [*self._unauthenticated, *(rank.wire for rank in self._ranks.values() if rank.wire)]
        reading = [line.fileno(), *(listener.fileno() for listener in self._listeners)]
        reading += [wire.fileno() for wire in wires]
        poll = select.poll()
        for descriptor in reading:
            poll.register(descriptor, select.POLLIN)
        for wire in wires:
            if wire.unsent:
                poll.register(wire.fileno(), select.POLLIN | select.POLLOUT)
        poll.poll(min(0.5, self._limits.pulse) * 1000)

    def _accept(self, now: float) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # no caller, or it is gone again
                connection, _ = listener.accept()
                if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                    connection.close()
                else:
                    wire = AuthenticatedConnection(connection, self._token, serves=True)
                    self._unauthenticated[wire] = now
                    wire.flush()

    def _read_unauthenticated(self, now: float) -> None:
        for wire, since in list(self._unauthenticated.items()):
            try:
                found = wire.arrived()
                wire.flush()
                if not found and now - since > _AUTH_TIMEOUT:
                    raise ConnectionError("says nothing")
            except OSError:
                found = []
                del self._unauthenticated[wire]
                wire.close()
            if found:
                del self._unauthenticated[wire]
                self._greet(wire, found[0], now)

    def _greet(self, wire: AuthenticatedConnection, hello: Value, now: float) -> None:
        """Whoever comes here knows the token."""
        rank = hello.get("rank")
        try:
            if hello.get("probe"):
                wire.send({"welcome": True})
                wire.close()
            elif hello.get("generation") != self._generation:
                wire.send({"refused": f"the gang is of generation {self._generation}"})
                wire.close()
            elif isinstance(rank, int):
                self._take(rank, wire, hello, now)
        except OSError:
            wire.close()

    def _take(self, rank: int, wire: AuthenticatedConnection, hello: Value, now: float) -> None:
        known = rank in self._ranks
        one = self._ranks.setdefault(rank, _RankConnection(now))
        if one.wire is not None:
            one.wire.close()
        one.wire, one.heard_at = wire, now
        wire.send({"welcome": True, "heard": one.channel.heard})
        for said in one.channel.again(int(hello.get("heard", 0))):
            wire.send(said)
        if not known:
            reached: List[str] = [str(address) for address in hello.get("reached", ())]
            self._rules.join(rank, str(hello.get("host")), reached)

    def _hear_ranks(self, now: float) -> None:
        for rank, one in self._ranks.items():
            if one.wire is None:
                continue
            try:
                for said in one.wire.arrived():
                    one.heard_at = now
                    value = one.channel.take(said)
                    if value is not None:
                        self._rules.receive(rank, value, now)
                one.wire.flush()
            except OSError:
                self._part(one, now)

    def _part(self, one: _RankConnection, now: float) -> None:
        if one.wire is not None:
            one.wire.close()
        one.wire, one.closed_at = None, now

    def _watch(self, now: float) -> None:
        """Detect lost ranks: a living one reconnects at once, and a slow network only delays."""
        set_unreachable = set()
        for rank, one in self._ranks.items():
            silent = now - one.heard_at
            if one.wire is None or silent > 3 * self._limits.pulse:
                set_unreachable.add(rank)
            how = ""
            if one.wire is None and now - one.closed_at > self._limits.closed:
                how = f"its connection closed and did not come back within {self._limits.closed:.0f} s"
            elif silent > self._limits.silent:
                how = f"it was not heard of for {self._limits.silent:.0f} s"
            if how and not one.lost:
                one.lost = True
                self._rules.lose(rank, how, now)
        self._rules.set_unreachable(set_unreachable)

    def _tell(self, line: HelperPipe) -> None:
        said, self._rules.outbox = self._rules.outbox, []
        for rank, value in said:
            if rank == 0:
                line.send_value(value)
            elif rank in self._ranks:
                self._send(self._ranks[rank], self._ranks[rank].channel.send_value(value))

    def _pulse(self, now: float) -> None:
        if now - self._pulsed >= self._limits.pulse:
            self._pulsed = now
            for rank in self._ranks.values():
                self._send(rank, rank.channel.pulse())

    def _send(self, one: _RankConnection, said: Value) -> None:
        if one.wire is not None:
            try:
                one.wire.send(said)
            except OSError:
                self._part(one, time.monotonic())


_PORTS = range(20000, 30000)
"""Below the ports of outgoing connections (net.ipv4.ip_local_port_range, from 32768 on), so that none takes it once it is released."""


class PortReservation:
    """Holds one of the ports of this host, on all of its addresses.

    It is held by listening with SO_REUSEADDR, so that connections closed a minute ago (TIME_WAIT) don't bar it; servers that
    set the same option, as torch's and Python's do, may listen there afterwards.
    """

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """A free port, another each time. Failure if there is none."""
        self.release()
        self._held = bind_first_free(self._ports, _listener)
        return int(self._held.getsockname()[1])

    def release(self) -> None:
        """Leave the port to the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _listener(port: int) -> socket.socket:
    """A listener of both families where the host has IPv6, as rank 0's store may listen on either."""
    try:
        return _listener_for_family(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listener_for_family(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - no connection is accepted


def _listener_for_family(family: int, address: str, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
        held.listen(0)  # of two that bind at once, the kernel lets one listen
    except OSError:
        held.close()
        raise
    return held
