"""The coordinator's orders to the ranks of a gang, by their messages and the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.node.rendezvous.coordinator_state import CoordinatorState, GangPolicy

STAGES = {
    "joining": ["here"],
    "queueing": ["ready"],
    "claiming": ["held"],
    "laying out": ["prepared"],
    "running": [],
}
_EXPECTED = ("then", "waits", "cause", "leader", "granted")


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
        for key, member in (("leader", "leader"), ("granted", "grace")):
            assert key not in step or {order[member] for _, order in orders} == {step[key]}
    assert len(set(gang.ports)) >= case.get("ports", 0)
