"""Pages share answers, and what they cost hosts is paced."""

from __future__ import annotations

import math
from concurrent.futures import wait
from threading import Event

import pytest

from trainctl.errors import NodeError
from trainctl.ui.pages import PageQueries


class Hosts:
    """Counts queries by a clock that the tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.order: list[str] = []
        monkeypatch.setattr("trainctl.ui.pages.time.monotonic", lambda: self.now)
        self.queries = PageQueries(None)

    def ask(self, name: str, every: float = 0.0) -> int:
        def query(before: int) -> int:
            self.order.append(name)
            return before + 1

        answer = self.queries.get(name, query, int, every)
        wait([answer.running] if answer.running else [])
        return answer.value

    def run(self, seconds: int, **every: float) -> list[str]:
        """Ask for all answers every second; the queries that were made."""
        begun = len(self.order)
        for _ in range(seconds):
            self.now += 1
            for name, age in every.items():
                self.ask(name, age)
        return self.order[begun:]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


def test_the_oldest_answer_is_next(hosts: Hosts) -> None:
    """All first answers come at once; then one in five seconds, in turn."""
    assert [hosts.ask(name) for name in "abc"] == [1, 1, 1]
    assert hosts.run(30, a=0, b=0, c=0) == ["a", "b", "c", "a", "b", "c"]


def test_answers_are_asked_for_no_more_often_than_wanted(hosts: Hosts) -> None:
    hosts.run(1, a=30, b=30)
    assert hosts.run(80, a=30, b=30) == ["a", "b", "a", "b"]


def test_a_log_comes_more_often_than_other_answers(hosts: Hosts) -> None:
    hosts.run(1, a=15, b=15, c=15, log=0)
    made = hosts.run(200, a=15, b=15, c=15, log=0)
    assert made.count("log") >= 1.5 * made.count("a") > 0


def test_final_answers_and_those_that_no_page_wants_cost_nothing(hosts: Hosts) -> None:
    hosts.run(1, ended=math.inf, left=0, open=0)
    made = hosts.run(60, ended=math.inf, open=0)
    assert set(made) == {"open"}
    assert len(made) >= 10
    assert hosts.ask("ended") == 1
    hosts.now += 601
    hosts.run(6, open=0)
    assert hosts.ask("ended") == 1
    assert hosts.order.count("ended") == 2


def test_a_failure_is_reported_and_tried_again(hosts: Hosts) -> None:
    def fail(_: int) -> int:
        raise NodeError("lab/a is unreachable")

    answer = hosts.queries.get("a", fail, int, math.inf)
    hosts.queries.settle(answer)
    assert (answer.value, answer.known, answer.problem) == (0, False, "lab/a is unreachable")
    hosts.now += 6
    assert hosts.ask("a") == 1
    assert answer.problem == ""


def test_a_query_that_runs_holds_up_no_other(hosts: Hosts) -> None:
    gate = Event()
    hosts.run(1, a=0, b=0)
    hosts.now += 6
    slow = hosts.queries.get("a", lambda _: int(gate.wait(20)), int, 0.0)
    assert hosts.run(20, b=0) == ["b", "b", "b", "b"]
    gate.set()
    wait([slow.running] if slow.running else [])


def test_a_page_waits_a_moment_for_first_answers() -> None:
    gate = Event()
    slow = PageQueries(0.01)
    answer = slow.get("a", lambda _: int(gate.wait(20)), int)
    slow.settle(answer)
    assert not answer.known
    gate.set()
    wait([answer.running] if answer.running else [])
    assert (answer.known, answer.value) == (True, 1)
