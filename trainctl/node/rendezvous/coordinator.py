"""Rank 0's helper process that connects all ranks, and the job's reserved port."""

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
"""Limit of open connections that are not authenticated."""

_AUTH_TIMEOUT = 10.0
_FAREWELL_SECONDS = 10.0


class _RankConnection:
    """The coordinator's connection to a rank."""

    def __init__(self, now: float) -> None:
        self.channel = ReliableChannel()
        self.connection: Optional[AuthenticatedConnection] = None
        self.received_at = self.closed_at = now
        self.lost = False


class Coordinator:
    """Exchanges messages until the gang is over and all ranks know."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: str,
        generation: int,
        state: CoordinatorState,
        timeouts: DisconnectTimeouts,
    ) -> None:
        self._listeners = listeners
        self._token = token
        self._generation = generation
        self._state = state
        self._timeouts = timeouts
        self._unauthenticated: Dict[AuthenticatedConnection, float] = {}
        self._ranks: Dict[int, _RankConnection] = {}
        self._heartbeat_at = 0.0
        self._over_at: Optional[float] = None

    def work(self, line: HelperPipe, host: str) -> None:
        """Main loop of the helper process."""

        self._state.join(0, host, ())
        while not self._is_done(line):
            self._wait(line)
            now = time.monotonic()
            for value in line.receive():
                self._state.receive(0, value, now)
            self._accept(now)
            self._read_unauthenticated(now)
            self._read_ranks(now)
            self._detect_lost_ranks(now)
            self._state.tick(now)
            self._send_outbox(line)
            self._send_heartbeats(now)

    def _is_done(self, line: HelperPipe) -> bool:
        """Check that every reachable rank knows the end, or the supervisor has exited."""
        if not line.open:
            return True
        if not self._state.over:
            return False
        self._over_at = self._over_at or time.monotonic()
        ranks = [rank for rank in self._ranks.values() if not rank.lost]
        is_acknowledged = all(rank.channel.all_acknowledged for rank in ranks)
        return is_acknowledged or time.monotonic() - self._over_at > _FAREWELL_SECONDS

    def _wait(self, line: HelperPipe) -> None:
        ranks = [rank.connection for rank in self._ranks.values() if rank.connection]
        connections = [*self._unauthenticated, *ranks]
        descriptors = [line.fileno(), *(listener.fileno() for listener in self._listeners)]
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        for connection in connections:
            writes = select.POLLOUT if connection.unsent else 0
            poll.register(connection.fileno(), select.POLLIN | writes)
        poll.poll(min(0.5, self._timeouts.heartbeat) * 1000)

    def _accept(self, now: float) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # no connection, or closed again
                accepted, _ = listener.accept()
                if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                    accepted.close()
                else:
                    connection = AuthenticatedConnection(accepted, self._token, serves=True)
                    self._unauthenticated[connection] = now
                    connection.flush()

    def _read_unauthenticated(self, now: float) -> None:
        for connection, since in list(self._unauthenticated.items()):
            try:
                values = connection.receive()
                connection.flush()
                if not values and now - since > _AUTH_TIMEOUT:
                    raise ConnectionError("authentication timed out")
            except OSError:
                values = []
                del self._unauthenticated[connection]
                connection.close()
            if values:
                del self._unauthenticated[connection]
                self._greet(connection, values[0], now)

    def _greet(self, connection: AuthenticatedConnection, hello: Value, now: float) -> None:
        """Handle the first message of an authenticated peer."""
        rank = hello.get("rank")
        try:
            if hello.get("probe"):
                connection.send({"welcome": True})
                connection.close()
            elif hello.get("generation") != self._generation:
                connection.send({"refused": f"the gang is of generation {self._generation}"})
                connection.close()
            elif isinstance(rank, int):
                self._connect(rank, connection, hello, now)
        except OSError:
            connection.close()

    def _connect(
        self, rank: int, connection: AuthenticatedConnection, hello: Value, now: float
    ) -> None:
        is_known = rank in self._ranks
        peer = self._ranks.setdefault(rank, _RankConnection(now))
        if peer.connection is not None:
            peer.connection.close()
        peer.connection, peer.received_at = connection, now
        connection.send({"welcome": True, "heard": peer.channel.received_count})
        for line in peer.channel.unacknowledged(int(hello.get("heard", 0))):
            connection.send(line)
        if not is_known:
            reached: List[str] = [str(address) for address in hello.get("reached", ())]
            self._state.join(rank, str(hello.get("host")), reached)

    def _read_ranks(self, now: float) -> None:
        for rank, peer in self._ranks.items():
            if peer.connection is None:
                continue
            try:
                for line in peer.connection.receive():
                    peer.received_at = now
                    value = peer.channel.receive(line)
                    if value is not None:
                        self._state.receive(rank, value, now)
                peer.connection.flush()
            except OSError:
                self._disconnect(peer, now)

    def _disconnect(self, peer: _RankConnection, now: float) -> None:
        if peer.connection is not None:
            peer.connection.close()
        peer.connection, peer.closed_at = None, now

    def _detect_lost_ranks(self, now: float) -> None:
        """Detect lost ranks: live ones reconnect at once, and a slow network only delays."""
        unreachable = set()
        for rank, peer in self._ranks.items():
            silent = now - peer.received_at
            if peer.connection is None or silent > 3 * self._timeouts.heartbeat:
                unreachable.add(rank)
            reason = ""
            if peer.connection is None and now - peer.closed_at > self._timeouts.closed:
                reason = (
                    f"it disconnected and did not reconnect within {self._timeouts.closed:.0f} s"
                )
            elif silent > self._timeouts.silent:
                reason = f"no message for {self._timeouts.silent:.0f} s"
            if reason and not peer.lost:
                peer.lost = True
                self._state.lose(rank, reason, now)
        self._state.set_unreachable(unreachable)

    def _send_outbox(self, line: HelperPipe) -> None:
        outbox, self._state.outbox = self._state.outbox, []
        for rank, value in outbox:
            if rank == 0:
                line.send_value(value)
            elif rank in self._ranks:
                self._send(self._ranks[rank], self._ranks[rank].channel.send_value(value))

    def _send_heartbeats(self, now: float) -> None:
        if now - self._heartbeat_at >= self._timeouts.heartbeat:
            self._heartbeat_at = now
            for peer in self._ranks.values():
                self._send(peer, peer.channel.heartbeat())

    def _send(self, peer: _RankConnection, line: Value) -> None:
        if peer.connection is not None:
            try:
                peer.connection.send(line)
            except OSError:
                self._disconnect(peer, time.monotonic())


_PORTS = range(20000, 30000)
"""Below ephemeral ports (net.ipv4.ip_local_port_range, from 32768), so that none takes a released port."""


class PortReservation:
    """Reserves a port on all addresses of this host.

    Listens with SO_REUSEADDR, so that recently closed connections (TIME_WAIT) don't block the port. Servers that set
    the same option, as torch and Python do, can bind it after the release.
    """

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """Reserve a free port, a different one each time; Failure if there is none."""
        self.release()
        self._held = bind_first_free(self._ports, _listener)
        return int(self._held.getsockname()[1])

    def release(self) -> None:
        """Release the port for the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _listener(port: int) -> socket.socket:
    """Listen on IPv6 and IPv4 where possible, as the job may use either."""
    try:
        return _listener_for_family(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listener_for_family(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - no connection is accepted


def _listener_for_family(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)  # if two processes bind at once, only one can listen
    except OSError:
        listener.close()
        raise
    return listener
