"""Gangs: the coordinator's orders, the messages between supervisors, and the cause of a failure."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.network.faulty_proxy import FaultyProxy
from tests.support.node_program.nodes import wait_for
from trainctl.base.network.listener import listen
from trainctl.node.rendezvous.channel import (
    AuthenticatedConnection,
    DisconnectTimeouts,
    HelperProcess,
    ReliableChannel,
)
from trainctl.node.rendezvous.coordinator import Coordinator
from trainctl.node.rendezvous.coordinator_connection import CoordinatorConnection
from trainctl.node.rendezvous.coordinator_state import CoordinatorState, GangPolicy
from trainctl.node.rendezvous.worker_failures import judge_failure
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

STAGES = {
    "joining": ["here"],
    "queueing": ["ready"],
    "claiming": ["held"],
    "laying out": ["prepared"],
    "running": [],
}
REPORT = (
    "E1128 16:27.5 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: CODE) local_rank: 1 (pid: 7)"
    " of binary: python\nTraceback (most recent call last):\ntorch.ChildFailedError:\n"
    + "  error_file: <N/A>\n" * 50
    + "  exitcode  : CODE (pid: 7)  (SIGNAL)\n"
)
"""What torchrun prints after its workers."""
_EXPECTED = ("then", "waits", "cause", "error", "leader", "granted")


class Gang:
    """A gang whose ranks are played by a case's steps."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.size = case.get("size", 3)
        self.now = 0.0
        self.ports: list[int] = []
        policy = GangPolicy(self.size, ["10.0.0.1", "10.0.1.1"], **case.get("policy", {}))
        self.state = CoordinatorState(policy, self._port, lambda: None, 42)
        for rank, host in zip(range(self.size), case.get("hosts", "abc"), strict=False):
            self.state.join(rank, host, case.get("reached", ["10.0.0.1", "10.0.1.1"]))
        for stage, messages in STAGES.items():
            if stage == case["until"]:
                break
            for message in messages:
                self.play({"from": "all", "is": message})

    def _port(self) -> int:
        self.ports.append(20000 + len(self.ports))
        return self.ports[-1]

    def play(self, step: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Take a step; the orders that the last message or the time caused."""
        self.now += step.get("seconds", 0)
        if "lose" in step:
            self.state.lose(step["lose"], "silence", self.now)
        elif "unreachable" in step:
            self.state.set_unreachable(set(step["unreachable"]))
        elif "from" in step:
            message = {key: value for key, value in step.items() if key not in ("from", *_EXPECTED)}
            if "status" in message:
                message["status"] = f"TRAINING_JOB_{message['status']}"
            for rank in range(self.size) if step["from"] == "all" else [step["from"]]:
                self.state.outbox = []
                self.state.receive(rank, message, self.now)
        else:
            self.state.tick(self.now)
        orders, self.state.outbox = self.state.outbox, []
        return orders


@pytest.mark.parametrize("case", cases("node/gangs"))
def test_a_gang_follows_its_rules(case: Any) -> None:
    gang = Gang(case)
    for step in case["steps"]:
        sent = gang.play(step)
        orders = [(rank, order) for rank, order in sent if order["do"] != "wait"]
        if "then" in step:
            then = step["then"]
            expected = dict.fromkeys(range(gang.size), then["all"]) if "all" in then else then
            assert {rank: order["do"] for rank, order in orders} == expected, step
            assert len(orders) == len(expected)
        if "waits" in step:
            assert {order["why"] for _, order in sent} == {step["waits"]}
        if "cause" in step:
            causes = [order["cause"] for _, order in orders]
            assert [
                cause and [cause["rank"], cause["status"].removeprefix("TRAINING_JOB_")]
                for cause in causes
            ] == [step["cause"]] * len(orders)
            if "error" in step:
                assert all(step["error"] in cause["error"] for cause in causes)
        for key, member in (("leader", "leader"), ("granted", "grace")):
            assert key not in step or {order[member] for _, order in orders} == {step[key]}
    assert len(set(gang.ports)) >= case.get("ports", 0)


@pytest.mark.parametrize("case", cases("node/consequences"))
def test_broken_connections_and_collectives_are_consequences(case: Any) -> None:
    text = f"{case['line']}\n"
    if "worker" in case:
        text += REPORT.replace("CODE", str(case["worker"]))
    consequence, error = judge_failure(text, case.get("code", 1))
    assert (consequence, error) == (case["consequence"], case.get("error", error))


def test_the_end_of_a_log_is_read_whatever_bytes_are_in_it(tmp_path: Path) -> None:
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    log = run.log(0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"Connection refused\n" + b"\xff" * 100_000 + b"\nAssertionError\n")
    assert run.tail(0).endswith("\nAssertionError\n")
    assert len(run.tail(0)) < 80_000
    assert run.tail(1) == ""


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def greeted(
    sockets: Pair, token: str = "secret", other: str = "secret"
) -> tuple[AuthenticatedConnection, AuthenticatedConnection]:
    server = AuthenticatedConnection(sockets[0], token, serves=True)
    client = AuthenticatedConnection(sockets[1], other, serves=False)
    server.flush()
    client.flush()
    client.receive()
    server.receive()
    return server, client


def test_who_knows_the_token_is_heard_both_ways(sockets: Pair) -> None:
    server, client = greeted(sockets)
    client.send({"rank": 1})
    client.send({"is": "here"})
    assert server.receive() == [{"rank": 1}, {"is": "here"}]
    server.send({"do": "go"})
    assert client.receive() == [{"do": "go"}]


def test_who_does_not_know_the_token_is_not_heard(sockets: Pair) -> None:
    server, client = greeted(sockets, other="guess")
    client.send({"rank": 1})
    with pytest.raises(ConnectionError, match="not authentic"):
        server.receive()


def test_a_line_is_worth_nothing_twice(sockets: Pair) -> None:
    server, client = greeted(sockets)
    client.send({"is": "ended"})
    line = sockets[0].recv(4096)
    sockets[1].sendall(line + line)
    with pytest.raises(ConnectionError, match="not authentic"):
        server.receive()


def test_nothing_is_lost_or_told_twice_over_broken_connections() -> None:
    ours, theirs = ReliableChannel(), ReliableChannel()
    lines = [ours.send_value({"number": number}) for number in range(4)]
    assert [theirs.receive(line) for line in lines[:2]] == [{"number": 0}, {"number": 1}]
    again = ours.unacknowledged(theirs.received_count)
    assert [theirs.receive(line) for line in again] == [{"number": 2}, {"number": 3}]
    assert not ours.all_acknowledged
    ours.receive(theirs.heartbeat())
    assert ours.all_acknowledged


HERE = "127.0.0.1"


class Ends:
    """A gang of two: what its supervisors have of it, and the network between their helpers."""

    def __init__(self) -> None:
        listeners = listen([HERE])
        limits = DisconnectTimeouts({"disconnect_timeout": 20, "silence_timeout": 40})
        self.network = FaultyProxy(f"http://{HERE}:{listeners[0].getsockname()[1]}")
        rules = CoordinatorState(GangPolicy(2, [HERE]), lambda: 20000, lambda: None, 7)
        coordinator = Coordinator(listeners, "secret", 1, rules, limits)
        about = {"host": "b", "generation": 1}
        link = CoordinatorConnection(1, about, [HERE], self.network.port, "secret", limits)
        kept = [one.fileno() for one in listeners]
        self._helpers = [
            HelperProcess(lambda line: coordinator.work(line, "a"), kept),
            HelperProcess(link.work),
        ]
        for listener in listeners:
            listener.close()
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
