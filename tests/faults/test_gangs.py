"""Runs on several nodes whose ranks fail, are killed, stopped and crowded: the cause is named, and nothing keeps running."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.gangs import QUICK, GangHarness, nodes
from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base.system.processes import descendants

BREAK = """\
import os, select, socket, sys, time
rank, size = int(os.environ["BT_NODE_RANK"]), int(os.environ["BT_GROUP_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
fails, seconds = int(sys.argv[1]), float(sys.argv[2])
if rank == 0:
    store = socket.create_server(where)
    peers = [store.accept()[0] for _ in range(size - 1)]
else:
    peers = []
    while not peers:
        try:
            peers = [socket.create_connection(where)]
        except ConnectionRefusedError:
            time.sleep(0.01)
if rank == fails:
    time.sleep(seconds)
    sys.exit("ValueError: loss is not a number")
select.select(peers, [], [])
raise ConnectionResetError("Connection closed by peer")
"""
"""When a rank fails all others break within a millisecond, rank 0 or through it."""


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[NodeHarness]]:
    with nodes(tmp_path, 4) as created:
        yield created


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[NodeHarness]]:
    with nodes(tmp_path, 2) as created:
        yield created


@pytest.mark.parametrize(
    "count", [pytest.param(2, id="short"), pytest.param(25, id="long", marks=pytest.mark.long)]
)
def test_the_rank_that_failed_is_named_and_not_one_that_suffered(
    four: list[NodeHarness], count: int
) -> None:
    """A rank that fails at a random time breaks the others' connections at once."""
    choose = random.Random(7)
    for number in range(count):
        fails = choose.randrange(4)
        command = f"{sys.executable} break.py {fails} {choose.uniform(0, 0.3)}"
        gang = GangHarness(four, command, key=f"run-{number}", files={"break.py": BREAK})
        gang.start()

        ended = gang.ended()

        causes = [status["root_cause"] for status in ended]
        assert {cause["rank"] for cause in causes} == {fails}, [gang.log(rank) for rank in range(4)]
        assert causes[0]["exit_code"] == 1
        assert ended[fails]["status"] == "TRAINING_JOB_FAILED"
        assert gang.processes() == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_supervisor_ends_the_gang(two: list[NodeHarness], rank: int) -> None:
    gang = GangHarness(two, "echo begun; sleep 600")
    gang.start()
    gang.printed("begun")

    gang.kill_supervisor(rank)

    ended = gang.ended()
    other = ended[1 - rank]
    assert ended[rank]["status"] == "TRAINING_JOB_LOST"
    assert other["status"] == "TRAINING_JOB_STOPPED"
    assert f"rank {rank}" in other["error"]
    cause = other["root_cause"]
    assert (cause["rank"], cause["status"]) == (rank, "TRAINING_JOB_LOST")
    assert gang.processes() == []


def send(number: signal.Signals, processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # a sampler has ended meanwhile
            os.kill(pid, number)


def test_a_node_that_falls_silent_is_lost_and_ends_itself_when_it_comes_back(
    two: list[NodeHarness],
) -> None:
    """All of a rank's processes freeze with their connections open."""
    gang = GangHarness(two, "echo begun; sleep 600", gang={**QUICK, "silence_timeout": 4})
    gang.start()
    gang.printed("begun")
    supervisor = two[1].status()["pid"]
    processes = [supervisor, *descendants(supervisor)]
    try:
        send(signal.SIGSTOP, processes)
        ended = two[0].ended()
        frozen = two[1].status()["status"]
    finally:
        send(signal.SIGCONT, processes)

    cause = ended["root_cause"]
    assert ended["status"] == "TRAINING_JOB_STOPPED"
    assert (cause["rank"], cause["status"]) == (1, "TRAINING_JOB_LOST")
    assert frozen == "TRAINING_JOB_RUNNING"
    assert two[1].ended()["status"] == "TRAINING_JOB_STOPPED"
    assert gang.processes() == []


def test_a_stop_of_any_rank_stops_all(four: list[NodeHarness]) -> None:
    gang = GangHarness(four, "echo begun; sleep 600")
    gang.start()
    gang.printed("begun")

    four[2].call("stop", {"key": "run-1", "grace_seconds": 5})

    assert {status["status"] for status in gang.ended()} == {"TRAINING_JOB_STOPPED"}
    assert gang.processes() == []


def test_a_stop_before_all_ranks_are_there_ends_those_that_are(two: list[NodeHarness]) -> None:
    gang = GangHarness(two, "echo begun")
    gang.start([0])
    wait_for(lambda: two[0].status()["waiting"] == "waits for rank 1 of 2")

    two[0].call("stop", {"key": "run-1", "grace_seconds": 5})

    assert two[0].status()["status"] == "TRAINING_JOB_STOPPED"


def test_two_gangs_at_once_on_the_same_nodes(tmp_path: Path) -> None:
    """Gangs that each want the only GPU of both nodes run one after the other, however they race; neither waits for ever."""
    gpus = {"compute": {"accelerator": "H100:1"}, "declared_gpus": 2}  # of the host, for two ranks
    with nodes(tmp_path, 2) as created:
        gangs = [
            GangHarness(order, "sleep 0.5", key=f"run-{number}", **gpus)
            for number, order in enumerate([created, created[::-1], created, created[::-1]])
        ]
        for gang in gangs:
            gang.start()

        ended = [gang.ended(120) for gang in gangs]

    assert {rank["status"] for ranks in ended for rank in ranks} == {"TRAINING_JOB_COMPLETED"}
    spans = sorted((ranks[0]["started_at"], ranks[0]["ended_at"]) for ranks in ended)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_a_rank_that_joins_late_completes_the_gang(four: list[NodeHarness]) -> None:
    """An operator who was killed after some ranks were started: the next one's orders start the others, and leave those as they are."""
    gang = GangHarness(four, "echo begun")
    gang.start([0, 2])
    pids = [four[rank].status()["pid"] for rank in (0, 2)]
    assert None not in pids

    gang.start()

    assert {status["status"] for status in gang.ended()} == {"TRAINING_JOB_COMPLETED"}
    assert [gang.log(rank) for rank in range(4)] == ["begun\n"] * 4


def test_a_failed_gang_is_tried_again_by_all_ranks(two: list[NodeHarness]) -> None:
    command = 'echo $BT_RETRY_COUNT; test "$BT_NODE_RANK$BT_RETRY_COUNT" != 10'
    gang = GangHarness(two, command, retry={"max_attempts": 3, "delay": 0.1})
    gang.start()

    ended = gang.ended()

    assert [status["status"] for status in ended] == ["TRAINING_JOB_COMPLETED"] * 2
    assert [gang.log(rank) for rank in range(2)] == ["0\n1\n"] * 2
    assert [row["retries"] for row in ended] == [1, 1]


def test_a_rank_that_can_not_begin_keeps_all_from_it(two: list[NodeHarness]) -> None:
    gang = GangHarness(two, "echo begun")
    gang.specs[1]["code"] = "sha256:missing"
    gang.start()

    ended = gang.ended()

    assert {status["status"] for status in ended} == {"TRAINING_JOB_DEPLOY_FAILED"}
    assert ended[0]["error"].startswith("rank 1 could not start: ")
    assert gang.log(0) == ""


def test_an_older_generation_is_refused(two: list[NodeHarness]) -> None:
    """A rank of an older attempt that comes back to a gang of a newer one ends itself; the gang still waits for its own."""
    gang = GangHarness(two, "echo begun", generation=2)
    rendezvous = two[0].call("start", gang.request(0))["rendezvous"]
    old = {**gang.request(1, rendezvous), "run": {**gang.specs[1], "generation": 1}}

    two[1].call("start", old)

    ended = two[1].ended()
    assert ended["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "generation 2" in ended["error"]
    assert two[0].status()["supervised"]
