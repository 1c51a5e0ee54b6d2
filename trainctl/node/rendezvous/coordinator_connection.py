"""Helper process of the other ranks: connects to the coordinator."""

from __future__ import annotations

import select
import socket
import time
from typing import List, Optional, Sequence

from trainctl.node.rendezvous.channel import (
    AuthenticatedConnection,
    DisconnectTimeouts,
    HelperPipe,
    ReliableChannel,
    Value,
)

_CONNECT_SECONDS = 3.0
_RETRY_SECONDS = 0.5


class RankRejected(Exception):
    """The coordinator rejected this rank, with a reason."""


class CoordinatorConnection:
    """Relays messages until the gang is over or rank 0 is lost."""

    def __init__(
        self,
        rank: int,
        hello: Value,
        addresses: Sequence[str],
        port: int,
        token: str,
        timeouts: DisconnectTimeouts,
    ) -> None:
        self._rank = rank
        self._hello = {"rank": rank, **hello}
        self._addresses = addresses
        self._port = port
        self._token = token
        self._timeouts = timeouts
        self._channel = ReliableChannel()
        self._reached: List[str] = []
        self._early: List[Value] = []
        self._over = False
        self._received_at = time.monotonic()

    def work(self, line: HelperPipe) -> None:
        """Main loop of the helper process."""
        try:
            self._work(line)
        except RankRejected as error:
            _report_loss(line, "fenced", f"rank 0 rejected this rank: {error}")

    def _work(self, line: HelperPipe) -> None:
        closed_at: Optional[float] = self._received_at
        while line.open and not self._over:
            connection = self._connect()
            if connection is not None:
                self._received_at = time.monotonic()
                broken = self._exchange(connection, line)
                connection.close()
                closed_at = time.monotonic() if broken else None
                continue
            reason = self._loss_reason(closed_at)
            if reason:
                _report_loss(line, "lost", reason)
                return
            for value in line.receive(_RETRY_SECONDS):  # sent after reconnecting
                self._channel.send_value(value)

    def _loss_reason(self, closed_at: Optional[float]) -> str:
        """Reason why rank 0 counts as lost; empty if it doesn't."""
        now = time.monotonic()
        if closed_at is not None and now - closed_at > self._timeouts.closed:
            tried = ", ".join(f"{address}:{self._port}" for address in self._addresses)
            return f"rank 0 is unreachable at {tried}"
        if now - self._received_at > self._timeouts.silent:
            return f"rank 0 sent no message for {self._timeouts.silent:.0f} s"
        return ""

    def _connect(self) -> Optional[AuthenticatedConnection]:
        """Open an authenticated connection; the first time, try all addresses."""
        if not self._reached:
            self._reached = [address for address in self._addresses if self._probe(address)]
        for address in self._reached:
            hello = {**self._hello, "reached": self._reached, "heard": self._channel.received_count}
            connection = self._open(address, hello)
            if connection is not None:
                return connection
        return None

    def _probe(self, address: str) -> bool:
        """Check that the coordinator, and no other server, listens at the address."""
        connection = self._open(address, {"probe": True})
        if connection is not None:
            connection.close()
        return connection is not None

    def _open(self, address: str, hello: Value) -> Optional[AuthenticatedConnection]:
        deadline = time.monotonic() + _CONNECT_SECONDS
        try:
            tcp = socket.create_connection((address, self._port), _CONNECT_SECONDS)
        except OSError:
            return None
        connection = AuthenticatedConnection(tcp, self._token, serves=False)
        greeted = False
        try:
            connection.flush()
            while time.monotonic() < deadline:
                select.select([connection], [], [], max(0.0, deadline - time.monotonic()))
                values = connection.receive()
                if connection.greeted and not greeted:
                    greeted = True
                    connection.send(hello)
                if values:
                    self._early = values[1:]
                    self._resume(connection, values[0])
                    return connection
        except OSError:
            pass
        connection.close()
        return None

    def _resume(self, connection: AuthenticatedConnection, welcome: Value) -> None:
        """Resend unacknowledged messages; RankRejected if the coordinator refuses."""
        if welcome.get("refused"):
            raise RankRejected(str(welcome["refused"]))
        if "heard" in welcome:
            for line in self._channel.unacknowledged(int(welcome["heard"])):
                connection.send(line)

    def _exchange(self, connection: AuthenticatedConnection, line: HelperPipe) -> bool:
        """Relay until the gang is over or silent; True if the connection broke."""
        heartbeat_at = time.monotonic()
        try:
            while line.open and not self._over:
                self._wait(connection, line)
                for value in line.receive():
                    connection.send(self._channel.send_value(value))
                received, self._early = [*self._early, *connection.receive()], []
                for message in received:
                    self._received_at = time.monotonic()
                    decision = self._channel.receive(message)
                    if decision is not None:
                        line.send_value(decision)
                        self._over = decision.get("do") == "over"
                connection.flush()
                now = time.monotonic()
                if now - heartbeat_at >= self._timeouts.heartbeat or self._over:
                    heartbeat_at = now
                    connection.send(self._channel.heartbeat())
                if now - self._received_at > self._timeouts.reconnect:
                    return False
        except OSError:
            return True
        return False

    def _wait(self, connection: AuthenticatedConnection, line: HelperPipe) -> None:
        poll = select.poll()
        poll.register(
            connection.fileno(), select.POLLIN | (select.POLLOUT if connection.unsent else 0)
        )
        poll.register(line.fileno(), select.POLLIN)
        poll.poll(0 if self._early else min(0.5, self._timeouts.heartbeat) * 1000)


def _report_loss(line: HelperPipe, reason: str, error: str) -> None:
    """Report to the supervisor that the coordinator is lost."""
    cause = {"rank": 0, "status": None, "exit_code": None, "error": error}
    line.send_value({"do": "over", "alone": reason, "cause": cause})
