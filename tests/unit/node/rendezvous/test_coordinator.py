"""Gangs: the coordinator's orders, the exchange between supervisors, and the cause of a failure."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.cases import cases
from tests.support.network.faulty_proxy import FaultyProxy
from tests.support.node_program.nodes import wait_for
from trainctl.base.network.addresses import listen
from trainctl.node.rendezvous import exchange
from trainctl.node.rendezvous.coordinator import Coordinator, GangPolicy, GangTimeouts
from trainctl.node.rendezvous.exchange import (
    MAC_BYTES,
    REQUEST,
    GangClient,
    GangServer,
    opened,
    sealed,
)
from trainctl.node.rendezvous.link import HelperPipe, HelperProcess, RankLink, coordinate
from trainctl.node.rendezvous.worker_failures import judge_failure
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

STAGES = {
    "joining": ["here"],
    "queueing": ["ready"],
    "claiming": ["held"],
    "preparing": ["prepared"],
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
        self.hosts = case.get("hosts", "abc")
        self.reached = case.get("reached", ["10.0.0.1", "10.0.1.1"])
        self.now = 0.0
        self.ports: list[int] = []
        policy = GangPolicy(self.size, ["10.0.0.1", "10.0.1.1"], **case.get("policy", {}))
        self.coordinator = Coordinator(policy, self._port, lambda: None, 42)
        for stage, words in STAGES.items():
            if stage == case["until"]:
                break
            for word in words:
                self.play({"from": "all", "is": word})

    def _port(self) -> int:
        self.ports.append(20000 + len(self.ports))
        return self.ports[-1]

    def play(self, step: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Take a step, each state twice; the orders that the last state or the time changed."""
        self.now += step.get("seconds", 0)
        before = dict(self.coordinator.orders)
        if "lose" in step:
            self.coordinator.lose(step["lose"], "silence", self.now)
        elif "unreachable" in step:
            self.coordinator.unreachable = set(step["unreachable"])
        elif "from" in step:
            for rank in range(self.size) if step["from"] == "all" else [step["from"]]:
                before = dict(self.coordinator.orders)
                for _ in range(2):
                    self.coordinator.update(rank, self._state(rank, step), self.now)
        else:
            self.coordinator.tick(self.now)
        orders = self.coordinator.orders
        return [(rank, orders[rank]) for rank in orders if orders[rank] != before[rank]]

    def _state(self, rank: int, step: Mapping[str, Any]) -> dict[str, Any]:
        order = self.coordinator.orders[rank]
        members = {key: value for key, value in step.items() if key not in ("from", *_EXPECTED)}
        if "status" in members:
            members["status"] = f"TRAINING_JOB_{members['status']}"
        attempt = len(self.ports)
        place = {"host": self.hosts[rank], "reached": self.reached, "instance": "first"}
        return {**place, "round": order.get("round"), "attempt": attempt, **members}


@pytest.mark.parametrize("case", cases("node/gangs"))
def test_a_gang_follows_its_rules(case: Any) -> None:
    gang = Gang(case)
    for step in case["steps"]:
        changed = gang.play(step)
        orders = [(rank, order) for rank, order in changed if "why" not in order]
        if "then" in step:
            then = step["then"]
            expected = dict.fromkeys(range(gang.size), then["all"]) if "all" in then else then
            assert {rank: order["do"] for rank, order in orders} == expected, step
        if "waits" in step:
            assert {order["why"] for _, order in changed} == {step["waits"]}
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


HERE = "127.0.0.1"
TIMEOUTS = GangTimeouts({"disconnect_timeout": 20, "silence_timeout": 40})


class Supervisors:
    """The supervisors of a gang of two, with their helpers and the network between these."""

    def __init__(self) -> None:
        listeners = listen([HERE])
        self.network = FaultyProxy(f"http://{HERE}:{listeners[0].getsockname()[1]}")
        coordinator = Coordinator(GangPolicy(2, [HERE]), lambda: 20000, lambda: None, 7)
        self.states = [
            {"rank": rank, "host": host, "generation": 1, "instance": "first", "is": "deploying"}
            for rank, host in enumerate("ab")
        ]

        def serve(line: HelperPipe) -> None:
            server = GangServer(listeners, "secret", 1, coordinator, TIMEOUTS)
            coordinate(line, self.states[0], server, TIMEOUTS)

        def connect(line: HelperPipe) -> None:
            exchange = client(self.network.port).exchange
            RankLink(line, self.states[1], exchange, TIMEOUTS).run()

        descriptors = [listener.fileno() for listener in listeners]
        self._helpers = [HelperProcess(serve, descriptors), HelperProcess(connect)]
        for listener in listeners:
            listener.close()
        self.orders: list[list[dict[str, Any]]] = [[], []]

    def report(self, rank: int, word: str, **members: Any) -> None:
        self._helpers[rank].line.send({**self.states[rank], "is": word, **members})

    def wait_for(self, rank: int, action: str) -> dict[str, Any]:
        def order() -> dict[str, Any] | None:
            self.orders[rank] += filter(None, [self._helpers[rank].line.receive()])
            return next((order for order in self.orders[rank] if order["do"] == action), None)

        return wait_for(order)

    def close(self) -> None:
        self.network.close()
        for helper in self._helpers:
            helper.finish(0)


def client(port: int, token: str = "secret") -> GangClient:
    return GangClient([HERE], port, token, TIMEOUTS)


@pytest.fixture
def supervisors() -> Iterator[Supervisors]:
    gang = Supervisors()
    yield gang
    gang.close()


def test_cut_connections_lose_nothing_and_no_rank(supervisors: Supervisors) -> None:
    for word, members, action in (
        ("here", {}, "queue"),
        ("ready", {"round": 1}, "claim"),
        ("held", {"round": 1}, "prepare"),
        ("prepared", {"attempt": 1}, "go"),
    ):
        supervisors.network.cut()
        supervisors.report(0, word, **members)
        if word == "held":
            supervisors.wait_for(1, "claim")
        supervisors.report(1, word, **members)
        for rank in range(1 if action == "claim" else 2):
            supervisors.wait_for(rank, action)
    for rank in range(2):
        end = {"status": "TRAINING_JOB_COMPLETED", "code": 0, "attempt": 1}
        supervisors.report(rank, "ended", **end)
    supervisors.network.cut()

    assert [supervisors.wait_for(rank, "over")["cause"] for rank in range(2)] == [None, None]
    actions = [order["do"] for order in supervisors.orders[1] if "why" not in order]
    assert actions == ["queue", "claim", "prepare", "go", "over"]


@pytest.fixture
def server() -> Iterator[GangServer]:
    coordinator = Coordinator(GangPolicy(2, [HERE]), lambda: 20000, lambda: None, 7)
    gang_server = GangServer(listen([HERE]), "secret", 1, coordinator, TIMEOUTS)
    gang_server.start()
    yield gang_server
    gang_server.stop()


def message(number: int, word: str) -> dict[str, Any]:
    state = {"rank": 1, "host": "b", "generation": 1, "instance": "first", "is": word}
    return {"number": number, "known": 0, "wait": 0, "state": state}


def port_of(server: GangServer) -> int:
    return int(cast(Any, server.server_address)[1])


def test_only_messages_with_the_token_are_answered(server: GangServer) -> None:
    with pytest.raises(OSError, match="no address is reachable"):
        client(port_of(server), "guess").exchange(message(1, "here"))
    order = client(port_of(server)).exchange(message(1, "here"))["order"]
    assert order["why"] == "waits for rank 0 of 2"


def test_a_connection_without_the_token_ends_however_slowly_it_speaks(
    server: GangServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_LOGIN_SECONDS", 0.1)
    with socket.create_connection((HERE, port_of(server)), timeout=30) as connection:
        connection.settimeout(0.02)
        with pytest.raises(OSError, match=r"reset|Broken"):  # noqa: PT012 - until it is closed
            for _ in range(500):
                connection.sendall(b"P")
                with contextlib.suppress(TimeoutError):
                    connection.recv(1)


def test_a_repeated_message_changes_nothing(server: GangServer) -> None:
    answers = [
        client(port_of(server)).exchange(message(*content))
        for content in ((1, "here"), (2, "deploying"), (1, "here"))
    ]
    reasons = [answer["order"]["why"] for answer in answers]
    assert reasons == ["waits for rank 0 of 2", *["waits for ranks 0, 1 of 2"] * 2]


def test_an_answer_holds_for_its_message_only() -> None:
    request = sealed(b"secret", REQUEST, {"number": 1})
    answer = sealed(b"secret", request[:MAC_BYTES], {"order": {}})
    assert opened(b"secret", REQUEST, request) == {"number": 1}
    assert opened(b"secret", request[:MAC_BYTES], answer) == {"order": {}}
    for context, data in ((answer[:MAC_BYTES], answer), (REQUEST, answer), (b"", request)):
        assert opened(b"secret", context, data) is None
