"""Pages share answers, and what they cost hosts is paced."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import wait
from threading import Event

import pytest

from trainctl.errors import NodeError
from trainctl.ui.queries import PageQueries


class Hosts:
    """Counts requests; queries of ``name`` cost ``cost`` on one host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.made = Counter[str]()
        self.order: list[str] = []
        monkeypatch.setattr("trainctl.ui.queries.time.monotonic", lambda: self.now)
        self.queries = PageQueries(lambda: self.made.copy(), None)

    def ask(self, name: str, cost: int = 1, *, final: bool = False, weight: float = 1.0) -> int:
        def query(before: int | None) -> int:
            self.made["host"] += cost
            self.order.append(name)
            return (before or 0) + 1

        answer = self.queries.get(name, query, int, final=final, weight=weight)
        wait([answer.running] if answer.running else [])
        return answer.value

    def run(self, seconds: int, *names: str, **costs: int) -> list[str]:
        """Ask for all answers every second; the queries that were made."""
        begun = len(self.order)
        for _ in range(seconds):
            self.now += 1
            for name in names:
                self.ask(name, costs.get(name, 1), weight=3.0 if name == "log" else 1.0)
        return self.order[begun:]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


def test_the_oldest_answer_is_next(hosts: Hosts) -> None:
    """All first answers come at once; then one in five seconds, in turn."""
    assert [hosts.ask(name) for name in "abc"] == [1, 1, 1]
    assert hosts.run(30, "a", "b", "c") == ["a", "b", "c", "a", "b", "c"]


def test_a_query_of_several_requests_takes_several_turns(hosts: Hosts) -> None:
    for name in "ab":
        hosts.ask(name)
    assert hosts.run(30, "a", "b", a=3) == ["a", "b", "a"]
    assert hosts.run(60, "a", "free", a=0, free=0).count("a") > 20


def test_weighty_answers_come_more_often(hosts: Hosts) -> None:
    for name in ("a", "b", "log"):
        hosts.ask(name)
    made = hosts.run(100, "a", "b", "log")
    assert made.count("log") >= 1.5 * made.count("a") > 0


def test_final_answers_and_those_that_no_page_wants_cost_nothing(hosts: Hosts) -> None:
    hosts.ask("ended", final=True)
    hosts.ask("left")
    hosts.ask("open")
    made = hosts.run(60, "ended", "open")
    assert set(made) == {"open"}
    assert len(made) >= 10
    assert hosts.ask("ended") == 1


def test_a_failure_is_reported_and_tried_again(hosts: Hosts) -> None:
    def fail(_: int | None) -> int:
        raise NodeError("lab/a is unreachable")

    answer = hosts.queries.get("a", fail, int)
    hosts.queries.settle(answer)
    assert (answer.value, answer.known, answer.problem) == (0, False, "lab/a is unreachable")
    hosts.now += 6
    assert hosts.ask("a") == 1
    assert answer.problem == ""


def test_a_page_knows_which_answers_it_has_not_waited_for() -> None:
    gate = Event()
    slow = PageQueries(Counter[str], 0.01)
    answer = slow.get("a", lambda _: int(gate.wait(20)), int)
    assert slow.settle(answer)
    gate.set()
    wait([answer.running] if answer.running else [])
    assert not slow.settle(answer)
    assert answer.value == 1
