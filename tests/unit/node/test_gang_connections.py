"""Rank 0's helper and another rank's, over a network that cuts connections."""

from __future__ import annotations

import contextlib
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


class Cutter:
    """Passes bytes on between those who connect to ``port`` and the one behind it, until they are cut."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._listener = socket.create_server((HERE, 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]

    def start(self) -> None:
        """From now on."""
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                other = socket.create_connection((HERE, self._behind))
                with self._lock:
                    self._open += [one, other]
                for pair in ((one, other), (other, one)):
                    self._threads.append(threading.Thread(target=_pass_on, args=pair))
                    self._threads[-1].start()

    def cut(self) -> None:
        """End every connection; new ones are served."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Serve nobody any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Ends:
    """A gang of two: what its supervisors have of it, and the network between their helpers."""

    def __init__(self, token: str = "secret", closed: float = 20) -> None:
        listeners = listen([HERE])
        limits = DisconnectTimeouts({"disconnect_timeout": closed, "silence_timeout": 40})
        self.network = Cutter(listeners[0].getsockname()[1])
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
        """Wait until a rank is told to do that."""

        def look() -> dict[str, Any] | None:
            self.received[rank] += self.lines[rank].receive()
            return next((one for one in self.received[rank] if one["do"] == word), None)

        return wait_for(look)

    def count(self, rank: int, word: str) -> int:
        """How often a rank was told so."""
        return sum(one["do"] == word for one in self.received[rank])

    def close(self) -> None:
        """Both supervisors end."""
        self.network.close()
        for helper in self._helpers:
            helper.finish(0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two helpers."""
    made = Ends()
    yield made
    made.close()


def test_cut_connections_lose_nothing_and_no_rank(ends: Ends) -> None:
    """Before each word the network cuts: everything arrives once, in order, and the gang goes on to its end."""
    for said, told in (
        ("here", "queue"),
        ("ready", "claim"),
        ("held", "lay out"),
        ("prepared", "go"),
    ):
        ends.network.cut()
        for rank in range(2) if said != "held" else ():
            ends.lines[rank].send_value({"is": said})
        if said == "held":
            ends.lines[0].send_value({"is": said})
            ends.hears(1, "claim")
            ends.lines[1].send_value({"is": said})
        ends.hears(0, told)
        if told != "claim":
            ends.hears(1, told)
    for rank in range(2):
        ends.lines[rank].send_value({"is": "ended", "status": "TRAINING_JOB_COMPLETED", "code": 0})
    ends.network.cut()

    assert [ends.hears(rank, "over")["cause"] for rank in range(2)] == [None, None]
    assert [ends.count(1, word) for word in ("queue", "claim", "lay out", "go", "over")] == [1] * 5


def test_a_stranger_does_not_become_a_rank() -> None:
    """Who has another token is not heard, and gives up; the gang still waits."""
    ends = Ends(token="guess", closed=1)
    try:
        ends.lines[0].send_value({"is": "here"})
        assert ends.hears(0, "wait")["why"] == "waits for rank 1 of 2"
        ends.lines[1].send_value({"is": "here"})
        assert ends.hears(1, "over")["alone"] == "lost"
        assert ends.count(0, "queue") == 0
    finally:
        ends.close()
