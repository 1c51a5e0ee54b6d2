"""The helper of every rank but the first: it calls rank 0's, and takes the connection up again when it breaks."""

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
    """Rank 0 does not want this rank: why."""


class CoordinatorConnection:
    """Passes on what the supervisor says, and what rank 0 says, until it is over or rank 0 is gone."""

    def __init__(
        self,
        rank: int,
        hello: Value,
        addresses: Sequence[str],
        port: int,
        token: str,
        limits: DisconnectTimeouts,
    ) -> None:
        self._rank = rank
        self._hello = {"rank": rank, **hello}
        self._addresses = addresses
        self._port = port
        self._token = token
        self._limits = limits
        self._channel = ReliableChannel()
        self._reached: List[str] = []
        self._early: List[Value] = []
        self._over = False
        self._heard_at = time.monotonic()

    def work(self, line: HelperPipe) -> None:
        """For as long as the helper lives."""
        try:
            self._work(line)
        except RankRejected as refused:
            _give_up(line, "fenced", f"rank 0 refused this rank: {refused}")

    def _work(self, line: HelperPipe) -> None:
        closed_at: Optional[float] = self._heard_at
        while line.open and not self._over:
            wire = self._connect()
            if wire is not None:
                self._heard_at = time.monotonic()
                broken = self._exchange(wire, line)
                wire.close()
                closed_at = time.monotonic() if broken else None
                continue
            why = self._why_gone(closed_at)
            if why:
                _give_up(line, "lost", why)
                return
            for value in line.arrived(_RETRY_SECONDS):  # kept until there is a connection
                self._channel.send_value(value)

    def _why_gone(self, closed_at: Optional[float]) -> str:
        """Why rank 0 counts as gone, if it does by now."""
        now = time.monotonic()
        if closed_at is not None and now - closed_at > self._limits.closed:
            tried = ", ".join(f"{address}:{self._port}" for address in self._addresses)
            return f"rank 0 can't be reached at {tried}"
        if now - self._heard_at > self._limits.silent:
            return f"rank 0 was not heard of for {self._limits.silent:.0f} s"
        return ""

    def _connect(self) -> Optional[AuthenticatedConnection]:
        """A connection that both sides have shown to be the gang's; the first time every address is tried, and told."""
        if not self._reached:
            self._reached = [one for one in self._addresses if self._answers(one)]
        for address in self._reached:
            hello = {**self._hello, "reached": self._reached, "heard": self._channel.heard}
            wire = self._call(address, hello)
            if wire is not None:
                return wire
        return None

    def _answers(self, address: str) -> bool:
        """Whether rank 0, and no other server, is at the address."""
        wire = self._call(address, {"probe": True})
        if wire is not None:
            wire.close()
        return wire is not None

    def _call(self, address: str, hello: Value) -> Optional[AuthenticatedConnection]:
        deadline = time.monotonic() + _CONNECT_SECONDS
        try:
            connection = socket.create_connection((address, self._port), _CONNECT_SECONDS)
        except OSError:
            return None
        wire = AuthenticatedConnection(connection, self._token, serves=False)
        greeted = False
        try:
            wire.flush()
            while time.monotonic() < deadline:
                select.select([wire], [], [], max(0.0, deadline - time.monotonic()))
                arrived = wire.arrived()
                if wire.greeted and not greeted:
                    greeted = True
                    wire.send(hello)
                if arrived:
                    self._early = arrived[1:]
                    self._resume(wire, arrived[0])
                    return wire
        except OSError:
            pass
        wire.close()
        return None

    def _resume(self, wire: AuthenticatedConnection, welcome: Value) -> None:
        """Say again what rank 0 has not heard. Refused if it doesn't want this rank."""
        if welcome.get("refused"):
            raise RankRejected(str(welcome["refused"]))
        if "heard" in welcome:
            for said in self._channel.again(int(welcome["heard"])):
                wire.send(said)

    def _exchange(self, wire: AuthenticatedConnection, line: HelperPipe) -> bool:
        """Until it is over, or there is silence, which a new connection may end; True if the other side closed this one."""
        pulsed = time.monotonic()
        try:
            while line.open and not self._over:
                self._wait(wire, line)
                for value in line.arrived():
                    wire.send(self._channel.send_value(value))
                arrived, self._early = [*self._early, *wire.arrived()], []
                for said in arrived:
                    self._heard_at = time.monotonic()
                    told = self._channel.take(said)
                    if told is not None:
                        line.send_value(told)
                        self._over = told.get("do") == "over"
                wire.flush()
                now = time.monotonic()
                if now - pulsed >= self._limits.pulse or self._over:
                    pulsed = now
                    wire.send(self._channel.pulse())
                if now - self._heard_at > self._limits.quiet:
                    return False
        except OSError:
            return True
        return False

    def _wait(self, wire: AuthenticatedConnection, line: HelperPipe) -> None:
        poll = select.poll()
        poll.register(wire.fileno(), select.POLLIN | (select.POLLOUT if wire.unsent else 0))
        poll.register(line.fileno(), select.POLLIN)
        poll.poll(0 if self._early else min(0.5, self._limits.pulse) * 1000)


def _give_up(line: HelperPipe, how: str, error: str) -> None:
    """Report to the supervisor that the coordinator is gone."""
    cause = {"rank": 0, "status": None, "exit_code": None, "error": error}
    line.send_value({"do": "over", "alone": how, "cause": cause})
