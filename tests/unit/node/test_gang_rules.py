"""What the ranks of a gang are told, by what they say and when."""

from __future__ import annotations

from typing import Any

import pytest

from trainctl.node.rendezvous.coordinator_state import COLLECT_SECONDS, CoordinatorState, GangPolicy

FAILED, COMPLETED = "TRAINING_JOB_FAILED", "TRAINING_JOB_COMPLETED"
LOST, STOPPED = "TRAINING_JOB_LOST", "TRAINING_JOB_STOPPED"


class Played:
    """A gang whose ranks are played by a test; ``now`` is its clock."""

    def __init__(self, size: int = 3, **policy: Any) -> None:
        self.size = size
        self.now = 0.0
        self.ports: list[int] = []
        self.rules = CoordinatorState(
            GangPolicy(size, ["10.0.0.1", "10.0.1.1"], **policy), self._port, lambda: None, 42
        )

    def _port(self) -> int:
        self.ports.append(20000 + len(self.ports))
        return self.ports[-1]

    def say(self, rank: int, what: str, **more: Any) -> list[tuple[int, dict[str, Any]]]:
        """One rank says something; what is said then."""
        self.rules.receive(rank, {"is": what, **more}, self.now)
        return self.told()

    def all_say(self, what: str) -> list[tuple[int, dict[str, Any]]]:
        """All ranks say it, one after another; what the last one brought about."""
        return [self.say(rank, what) for rank in range(self.size)][-1]

    def told(self) -> list[tuple[int, dict[str, Any]]]:
        """What was said since."""
        said, self.rules.outbox = self.rules.outbox, []
        return said

    def pass_time(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        """Nobody says anything for so long."""
        self.now += seconds
        self.rules.tick(self.now)
        return self.told()

    def join(self, reached: list[str] | None = None, hosts: str = "abc") -> None:
        """All ranks are there."""
        for rank in range(self.size):
            self.rules.join(rank, hosts[rank], reached or ["10.0.0.1", "10.0.1.1"])

    def run(self) -> None:
        """As far as running commands."""
        self.join()
        for what in ("here", "ready"):
            self.all_say(what)
        for rank in range(self.size):
            self.say(rank, "held")
        assert words(self.all_say("prepared")) == ["go"] * self.size

    def end(self, rank: int, status: str = FAILED, **more: Any) -> list[tuple[int, dict[str, Any]]]:
        """One rank's commands end."""
        return self.say(rank, "ended", **{"status": status, "code": 1, "error": "broke", **more})


def words(told: list[tuple[int, dict[str, Any]]]) -> list[str]:
    """What is to be done, without reasons."""
    return [value["do"] for _, value in told if value["do"] != "wait"]


def cause(told: list[tuple[int, dict[str, Any]]]) -> tuple[int, str]:
    """The rank that is named, and how it ended."""
    found = next(value["cause"] for _, value in told if value["do"] in ("over", "end"))
    return found["rank"], found["status"]


@pytest.mark.parametrize(("end", "rank"), [("any", 2), ("any", 0), ("leader", 0)])
def test_what_completes_ends_the_others_after_a_while(end: str, rank: int) -> None:
    """Ranks that only wait, as scripts of hosted services have them, do not keep the run from completing."""
    gang = Played(end=end, end_grace=60.0)
    gang.run()
    assert gang.end(rank, COMPLETED) == gang.pass_time(59) == []
    told = gang.pass_time(2)
    assert words(told) == ["end", "end"]
    assert cause(told) == (rank, COMPLETED)
    others = [other for other in range(3) if other != rank]
    assert gang.end(others[0], STOPPED) == []
    assert cause(gang.end(others[1], STOPPED)) == (rank, COMPLETED)


@pytest.mark.parametrize("end", ["leader", "all"])
def test_a_rank_that_is_not_enough_ends_nobody(end: str) -> None:
    """All others may take as long as they like."""
    gang = Played(end=end)
    gang.run()
    assert gang.end(1, COMPLETED) == gang.pass_time(1000) == []


def test_a_failure_in_the_time_left_fails_all() -> None:
    """The first non-zero exit counts until the others are stopped."""
    gang = Played(end="any", end_grace=60.0)
    gang.run()
    gang.end(2, COMPLETED)
    assert cause(gang.end(1, FAILED)) == (1, FAILED)


def test_nobody_stands_in_a_queue_before_all_are_there() -> None:
    """A rank that never came holds up nobody else's turn."""
    gang = Played()
    gang.join()
    assert words(gang.say(0, "here")) == []
    assert gang.say(2, "here") == [
        (0, {"do": "wait", "why": "waits for rank 1 of 3"}),
        (2, {"do": "wait", "why": "waits for rank 1 of 3"}),
    ]
    told = gang.say(1, "here")
    assert told == [(rank, {"do": "queue", "date": 42}) for rank in range(3)]


def test_claims_are_made_one_after_another_host_by_host() -> None:
    """In the order of hosts, not of ranks: two gangs whose ranks are in another order meet at the same host first."""
    gang = Played()
    gang.join(hosts="cab")
    gang.all_say("here")
    assert gang.all_say("ready") == [(1, {"do": "claim"})]
    assert gang.say(1, "held") == [(2, {"do": "claim"})]
    assert gang.say(2, "held") == [(0, {"do": "claim"})]
    assert words(gang.say(0, "held")) == ["lay out"] * 3


def test_what_is_held_is_given_back_when_one_can_not_claim() -> None:
    """And tried again after a while, once all are ready again: nothing is held while it waits."""
    gang = Played()
    gang.join()
    gang.all_say("here")
    gang.all_say("ready")
    gang.say(0, "held")
    assert words(gang.say(1, "refused")) == ["release"] * 3
    assert words(gang.all_say("ready")) == []
    assert words(gang.pass_time(6)) == ["claim"]


def test_a_rank_that_can_not_now_is_told_to_the_others() -> None:
    """They wait for it, and say so."""
    gang = Played()
    gang.join()
    gang.all_say("here")
    assert gang.say(1, "busy", why="waits for 2 of 4 GPUs on lab/b") == [
        (rank, {"do": "wait", "why": "waits for rank 1: 2 of 4 GPUs on lab/b"}) for rank in (0, 2)
    ]
    assert gang.say(1, "busy", why="waits for 2 of 4 GPUs on lab/b, taken by job.a run 1") == [
        (
            rank,
            {"do": "wait", "why": "waits for rank 1: 2 of 4 GPUs on lab/b, taken by job.a run 1"},
        )
        for rank in (0, 2)
    ]


def test_the_address_is_one_that_all_ranks_reach() -> None:
    """The first of those preferred; where there is none nothing begins."""
    gang = Played()
    gang.join(["10.0.1.1"])
    gang.all_say("here")
    gang.all_say("ready")
    gang.say(0, "held")
    gang.say(1, "held")
    assert {value["leader"] for _, value in gang.say(2, "held")} == {"10.0.1.1"}

    blind = Played()
    blind.join(["10.0.9.9"])
    told = blind.all_say("here")
    assert cause(told) == (0, "TRAINING_JOB_DEPLOY_FAILED")
    assert blind.rules.over


def test_a_failure_that_is_no_consequence_ends_the_others_at_once() -> None:
    """It is the cause, whoever fails afterwards."""
    gang = Played()
    gang.run()
    told = gang.end(1)
    assert [rank for rank, _ in told] == [0, 2]
    assert (words(told), cause(told)) == (["end", "end"], (1, FAILED))
    gang.end(0, STOPPED)
    assert cause(gang.end(2, FAILED)) == (1, FAILED)


def test_a_consequence_is_not_the_cause_if_another_failure_follows() -> None:
    """Exits are collected for some seconds; the others go on meanwhile."""
    gang = Played()
    gang.run()
    assert gang.end(0, consequence=True) == []
    assert gang.pass_time(COLLECT_SECONDS / 2) == []
    assert cause(gang.end(2)) == (2, FAILED)


def test_consequences_alone_make_the_first_one_the_cause() -> None:
    """Once the seconds are over, or all ranks have ended."""
    gang = Played()
    gang.run()
    gang.end(2, consequence=True)
    gang.end(0, consequence=True)
    assert cause(gang.pass_time(COLLECT_SECONDS)) == (2, FAILED)

    other = Played()
    other.run()
    for rank in (1, 0):
        other.end(rank, consequence=True)
    assert cause(other.end(2, consequence=True)) == (1, FAILED)


def test_a_rank_that_is_away_may_be_the_cause() -> None:
    """Those that suffered from its loss are not blamed before it is known whether it was lost."""
    gang = Played()
    gang.run()
    gang.rules.set_unreachable({1})
    gang.end(0, consequence=True)
    assert gang.pass_time(COLLECT_SECONDS * 1.5) == []
    gang.rules.lose(1, "silence", gang.now)
    assert cause(gang.told()) == (1, LOST)


@pytest.mark.parametrize("attempts", [1, 2])
def test_all_ranks_are_tried_again_together(attempts: int) -> None:
    """As often as the policy allows, after its delay, at another port."""
    gang = Played(max_attempts=attempts, delay_seconds=7.0)
    gang.run()
    gang.end(1)
    gang.end(0, STOPPED)
    told = gang.end(2, STOPPED)
    if attempts == 1:
        assert words(told) == ["over"] * 3
        return
    assert words(told) == ["again"] * 3
    assert gang.pass_time(6) == []
    assert words(gang.pass_time(1)) == ["lay out"] * 3
    assert len(set(gang.ports)) == 2


@pytest.mark.parametrize("how", ["expired", "lost", "stopped"])
def test_some_ends_are_final(how: str) -> None:
    """A deadline, a lost rank and a stop are not tried again."""
    gang = Played(max_attempts=9)
    gang.run()
    if how == "expired":
        gang.end(0, expired=True)
    elif how == "lost":
        gang.rules.lose(0, "silence", gang.now)
    else:
        gang.say(0, "stop", grace=3.0)
        gang.end(0, STOPPED)
    gang.end(1, STOPPED)
    assert words(gang.end(2, STOPPED)) == ["over"] * 3


def test_a_stop_passes_its_grace_on() -> None:
    """All ranks have as long as the one that was asked."""
    gang = Played()
    gang.run()
    assert {value["grace"] for _, value in gang.say(1, "stop", grace=3.0)} == {3.0}


def test_all_completed_is_over_without_a_cause() -> None:
    """The run has completed when every rank has."""
    gang = Played()
    gang.run()
    told = [gang.end(rank, COMPLETED, code=0, error=None) for rank in range(3)]
    assert told[:2] == [[], []]
    assert told[2] == [(rank, {"do": "over", "cause": None}) for rank in range(3)]


def test_ranks_that_would_begin_from_different_checkpoints_do_not() -> None:
    """Training that goes on from two places at once is worth nothing."""
    gang = Played(size=2)
    gang.join()
    gang.all_say("here")
    gang.all_say("ready")
    gang.say(0, "held")
    gang.say(1, "held")
    gang.say(0, "prepared", loaded=[["p/j/1-a", "step-40"]])
    told = gang.say(1, "prepared", loaded=[["p/j/1-a", "step-20"]])
    assert cause(told) == (1, "TRAINING_JOB_DEPLOY_FAILED")


def test_rank_0_takes_the_gang_s_slot_before_anyone_queues() -> None:
    """A gang counts once in its sweep."""
    gang = Played(slot=True)
    gang.join()
    told = gang.all_say("here")
    assert [(rank, value["do"]) for rank, value in told if value["do"] != "wait"] == [(0, "slot")]
    assert words(gang.say(0, "slotted")) == ["queue"] * 3
