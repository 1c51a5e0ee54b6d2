"""Rank 0's helper and another rank's, over a network that cuts connections."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from trainctl.base.network.listener import listen
from trainctl.node.rendezvous.channel import DisconnectTimeouts, HelperProcess
from trainctl.node.rendezvous.coordinator import Coordinator
from trainctl.node.rendezvous.coordinator_connection import CoordinatorConnection
from trainctl.node.rendezvous.coordinator_state import CoordinatorState, GangPolicy

HERE = "127.0.0.1"


class Network(threading.Thread):
    """Forwards the bytes of connections to ``behind`` until they are cut."""

    def __init__(self, behind: int) -> None:
        super().__init__()
        self._behind = behind
        self._listener = socket.create_server((HERE, 0))
        self.port = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._is_cut, self._closed = threading.Event(), False

    def run(self) -> None:
        while not self._closed:
            for ready in select.select([self._listener, *self._peers], [], [], 0.01)[0]:
                self._forward(ready)
            if self._is_cut.is_set():
                for end in [*self._peers]:
                    self._end(end)
                self._is_cut.clear()
        for end in (*self._peers, self._listener):
            end.close()

    def _forward(self, ready: socket.socket) -> None:
        if ready is self._listener:
            end, _ = ready.accept()
            other = socket.create_connection((HERE, self._behind))
            self._peers.update({end: other, other: end})
        elif ready in self._peers:
            with contextlib.suppress(OSError):
                if data := ready.recv(4096):
                    self._peers[ready].sendall(data)
                    return
            self._end(ready)

    def _end(self, end: socket.socket) -> None:
        if end in self._peers:
            other = self._peers.pop(end)
            del self._peers[other]
            end.close()
            other.close()

    def cut(self) -> None:
        """End all connections; new ones are forwarded."""
        self._is_cut.set()
        wait_for(lambda: not self._is_cut.is_set())

    def close(self) -> None:
        self._closed = True
        self.join()


class Ends:
    """A gang of two: what its supervisors have of it, and the network between their helpers."""

    def __init__(self, token: str = "secret", closed: float = 20) -> None:
        listeners = listen([HERE])
        limits = DisconnectTimeouts({"disconnect_timeout": closed, "silence_timeout": 40})
        self.network = Network(listeners[0].getsockname()[1])
        rules = CoordinatorState(GangPolicy(2, [HERE]), lambda: 20000, lambda: None, 7)
        coordinator = Coordinator(listeners, "secret", 1, rules, limits)
        link = CoordinatorConnection(
            1, {"host": "b", "generation": 1}, [HERE], self.network.port, token, limits
        )
        kept = [one.fileno() for one in listeners]
        self._helpers = [
            HelperProcess(lambda line: coordinator.work(line, "a"), kept),
            HelperProcess(link.work),
        ]
        for listener in listeners:
            listener.close()
        self.network.start()
        self.lines = [one.line for one in self._helpers]
        self.received: list[list[dict[str, Any]]] = [[], []]

    def hears(self, rank: int, word: str) -> dict[str, Any]:

        def look() -> dict[str, Any] | None:
            self.received[rank] += self.lines[rank].receive()
            return next((one for one in self.received[rank] if one["do"] == word), None)

        return wait_for(look)

    def count(self, rank: int, word: str) -> int:
        return sum(one["do"] == word for one in self.received[rank])

    def close(self) -> None:
        self.network.close()
        for helper in self._helpers:
            helper.finish(0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_cut_connections_lose_nothing_and_no_rank(ends: Ends) -> None:
    for message, order in (
        ("here", "queue"),
        ("ready", "claim"),
        ("held", "lay out"),
        ("prepared", "go"),
    ):
        ends.network.cut()
        ends.lines[0].send_value({"is": message})
        if message == "held":
            ends.hears(1, "claim")
        ends.lines[1].send_value({"is": message})
        for rank in range(1 if order == "claim" else 2):
            ends.hears(rank, order)
    for rank in range(2):
        ends.lines[rank].send_value({"is": "ended", "status": "TRAINING_JOB_COMPLETED", "code": 0})
    ends.network.cut()

    assert [ends.hears(rank, "over")["cause"] for rank in range(2)] == [None, None]
    assert [ends.count(1, word) for word in ("queue", "claim", "lay out", "go", "over")] == [1] * 5


def test_a_stranger_does_not_become_a_rank() -> None:
    ends = Ends(token="guess", closed=1)
    try:
        ends.lines[0].send_value({"is": "here"})
        assert ends.hears(0, "wait")["why"] == "waits for rank 1 of 2"
        ends.lines[1].send_value({"is": "here"})
        assert ends.hears(1, "over")["alone"] == "lost"
        assert ends.count(0, "queue") == 0
    finally:
        ends.close()
