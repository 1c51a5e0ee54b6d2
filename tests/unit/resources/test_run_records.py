"""What the answers of a run's nodes add up to, and what a node is told of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainctl.base.protocol.runs import RunReport
from trainctl.errors import NodeUnreachable
from trainctl.jobs.environment import run_paths
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.model.specs.resource import ClusterSpec, DesiredResource
from trainctl.plugin_api.provider import Capabilities, Node, Provider, ResourceStatus
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import Agents
from trainctl.resources.delivery import RankAssignment
from trainctl.resources.runs.launch import PlacedRank, PreparedRank, build_run_spec
from trainctl.resources.runs.run_control import RunControl
from trainctl.resources.runs.run_status import are_lost, with_partial_status, with_status

JOB = Address.parse("job.sft")
S = RunStatus


def run_of(*statuses: RunStatus, **more: Any) -> RunRecord:
    """A run with a rank of each status."""
    ranks = tuple(RankRecord(n, f"lab/lab-{n}", status) for n, status in enumerate(statuses))
    return RunRecord("abc1234", 3, "key", ranks=ranks, **{"status": S.RUNNING, **more})


def answer(status: RunStatus, **more: Any) -> RunReport:
    """What one node says."""
    found: Any = {"key": "key", "status": status.value, "supervised": status.live, **more}
    return cast(RunReport, found)


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ([S.RUNNING], S.RUNNING),
        ([S.COMPLETED, S.COMPLETED], S.COMPLETED),
        ([S.COMPLETED, S.RUNNING], S.RUNNING),
        ([S.COMPLETED, S.CREATED], S.CREATED),
        ([S.RUNNING, S.FAILED], S.RUNNING),
        ([S.STOPPED, S.FAILED], S.FAILED),
        ([S.COMPLETED, S.DEPLOY_FAILED], S.DEPLOY_FAILED),
        ([S.COMPLETED, S.STOPPED], S.STOPPED),
        ([S.LOST, S.COMPLETED], S.LOST),
    ],
)
def test_a_run_is_what_its_worst_rank_is(statuses: Sequence[RunStatus], whole: RunStatus) -> None:
    """It goes on while any rank does, has completed when all have, and has failed if one has."""
    run = run_of(*[S.RUNNING] * len(statuses))
    now = with_status(run, [answer(status) for status in statuses])
    assert now.status is whole
    assert [rank.status for rank in now.ranks] == list(statuses)


def test_every_status_has_its_place() -> None:
    """None that a node may report is unknown to the sum."""
    assert {with_status(run_of(S.RUNNING), [answer(status)]).status for status in S} == set(S)


def test_times_are_those_of_the_first_rank() -> None:
    """Clocks of different hosts don't compare: an hour's difference is none. A run has ended once all ranks have, which the first one is told."""
    run = run_of(S.RUNNING, S.RUNNING, phases={"delivering": 1.0})
    first = answer(S.COMPLETED, started_at=10.0, ended_at=15.0)
    half = with_status(run, [first, answer(S.RUNNING, started_at=3611.0)])
    assert (half.started_at, half.ended_at, half.phases) == (10.0, None, {"delivering": 1.0})
    whole = with_status(half, [first, answer(S.COMPLETED, started_at=3611.0, ended_at=3615.0)])
    assert (whole.started_at, whole.ended_at) == (10.0, 15.0)
    assert whole.phases == {"delivering": 1.0, "running": 5.0}


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    """A run that seems to end before it began took no time."""
    ended = answer(S.COMPLETED, started_at=100.0, ended_at=40.0)
    assert with_status(run_of(S.RUNNING), [ended]).phases["running"] == 0.0


def test_a_live_run_that_its_node_does_not_know_is_lost() -> None:
    """One that had ended before is what it was."""
    assert with_status(run_of(S.RUNNING), [None]).status is S.LOST
    ended = run_of(S.COMPLETED, status=S.COMPLETED, ended_at=5.0)
    assert with_status(ended, [None]) == ended


def test_what_only_some_nodes_tell_is_of_their_ranks_alone() -> None:
    """The run, and the rank of a node that says nothing, stay as they were seen last; a rank that a node doesn't know is lost."""
    run = run_of(S.RUNNING, S.RUNNING, S.RUNNING)
    now = with_partial_status(run, {0: answer(S.FAILED, exit_code=3), 2: None})

    assert [rank.status for rank in now.ranks] == [S.FAILED, S.RUNNING, S.LOST]
    assert (now.status, now.ended_at, now.error) == (S.RUNNING, None, None)


def test_exit_codes_and_errors_are_kept() -> None:
    """The rank's exit code, and the first error that a node tells."""
    run = run_of(S.RUNNING, S.RUNNING)
    answers = [answer(S.FAILED, exit_code=3, error="exit code 3"), answer(S.STOPPED, error="ended")]
    now = with_status(run, answers)
    assert now.error == "exit code 3"
    assert [rank.exit_code for rank in now.ranks] == [3, None]


def test_the_error_of_an_earlier_attempt_goes_with_the_next() -> None:
    """What was recorded while a run was tried again is not said of one that completed; where nobody answers it stays."""
    run = run_of(S.RUNNING, error="start command 1 of 1 exited with 1")

    assert with_status(run, [answer(S.COMPLETED, error=None, retries=2)]).error is None
    assert with_status(run, [answer(S.COMPLETED, retries=2)]).retries == 2
    assert with_status(run, [None]).error == run.error


def test_a_gang_is_live_as_long_as_any_rank_is() -> None:
    """One rank that has completed, or failed, doesn't end the run: the others' ends come with the gang's."""
    run = run_of(S.RUNNING, S.RUNNING)
    assert with_status(run, [answer(S.COMPLETED), answer(S.RUNNING)]).status is S.RUNNING
    assert with_status(run, [answer(S.FAILED), answer(S.RUNNING)]).status is S.RUNNING
    assert with_status(run, [answer(S.FAILED), answer(S.STOPPED)]).status is S.FAILED
    assert with_status(run, [answer(S.STOPPED), None]).status is S.LOST


def test_a_gang_whose_ranks_lost_each_other_is_lost() -> None:
    """All nodes answer again, and each of its ranks was ended as the other was lost: nobody has stopped that run."""
    run = run_of(S.RUNNING, S.RUNNING)
    blames = [{"rank": rank, "status": S.LOST.value, "error": "was lost"} for rank in (1, 0)]
    now = with_status(run, [answer(S.STOPPED, root_cause=root_cause) for root_cause in blames])
    assert (now.status, now.error) == (S.LOST, "rank 1 was lost")
    asked = {"rank": 0, "status": S.STOPPED.value, "error": ""}
    assert with_status(run, [answer(S.STOPPED, root_cause=asked)] * 2).status is S.STOPPED


def test_a_gang_that_lost_a_rank_before_it_began_is_lost() -> None:
    """Nobody will start that rank any more, and the others would wait for it for ever."""
    run = run_of(S.DEPLOYING, S.DEPLOYING)
    gone = answer(S.CREATED, supervised=False)
    assert with_status(run, [answer(S.DEPLOYING), gone]).status is S.LOST
    assert with_status(run, [answer(S.RUNNING, started_at=1.0), gone]).status is S.RUNNING


def test_the_run_tells_of_the_rank_that_was_the_cause() -> None:
    """Its number, error and exit code are the run's; the others say that they ended because of it."""
    cause = {"rank": 1, "status": S.FAILED.value, "exit_code": 3, "error": "it exited with 3"}
    answers = [
        answer(S.STOPPED, exit_code=143, error="stopped because rank 1 failed", root_cause=cause),
        answer(S.FAILED, exit_code=3, error="it exited with 3", root_cause=cause),
    ]
    run = with_status(run_of(S.RUNNING, S.RUNNING), answers)
    assert (run.status, run.error, run.blamed) == (S.FAILED, "rank 1: it exited with 3", 1)
    assert run.exit_code == 3
    assert [rank.error for rank in run.ranks] == ["stopped because rank 1 failed", None]


def test_a_rank_whose_node_is_silent_is_lost_once_the_others_say_so() -> None:
    """A node that can't be asked may be slow; the others' coordinator knows better when it has given it up."""
    cause = {"rank": 1, "status": S.LOST.value, "exit_code": None, "error": "was lost: silence"}
    assert are_lost({1}, [answer(S.STOPPED, root_cause=cause), None])
    assert not are_lost({1}, [answer(S.RUNNING), None])
    assert not are_lost({0}, [None, answer(S.STOPPED, root_cause={**cause, "rank": 1})])


@pytest.mark.parametrize(
    ("notice", "status", "interrupted"),
    [
        ({"kind": "imds"}, ResourceStatus.MISSING, True),
        ({"kind": "imds"}, ResourceStatus.UNREACHABLE, False),
        (None, ResourceStatus.MISSING, False),
    ],
)
def test_a_gang_whose_machine_vanished_was_interrupted(
    notice: object, status: ResourceStatus, interrupted: bool
) -> None:
    """If its platform takes machines back, and says that this one is gone."""
    cause = {"rank": 1, "status": S.LOST.value, "exit_code": None, "error": "was lost: silence"}
    details = {"notice": notice} if notice else {}
    nodes = [Node("lab", f"lab-{n}", "a", "/r", "/d", "python3", details=details) for n in (0, 1)]
    outputs = {"nodes": [node.to_json() for node in nodes]}
    cluster = RecordedResource(Address.parse("cluster.lab"), "rented", {}, outputs)
    provider = SimpleNamespace(
        read=lambda node: status, capabilities=Capabilities(), transport=lambda node: node
    )

    def call(self: NodeAgent, *_: object, **__: object) -> object:
        if self._node.name == "lab-1":
            raise NodeUnreachable("lab/lab-1 is unreachable")
        return {"runs": {"key": answer(S.STOPPED, root_cause=cause)}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeAgent, "call", call)
        agents = Agents(lambda _: cast(Provider, provider))
        control = RunControl(agents, {cluster.address: cluster}.get)
        run, error = control.statuses([run_of(S.RUNNING, S.RUNNING)])["key"]

    assert (error, run.status, run.interrupted) == (None, S.LOST, interrupted)


def test_a_run_without_ranks_is_what_it_was() -> None:
    """It never came to a node, so no node changes it."""
    run = run_of(status=S.DEPLOY_FAILED)
    assert with_status(run, []) == run


def test_a_node_is_told_everything_but_secret_values() -> None:
    """Code and weights by digest, commands in order, and which variable takes which secret."""
    node = Node("lab", "lab-0", "local", root="/cache/lab-0", data="/data", python="python3")
    attributes = {
        "project": "demo",
        "code": {"digest": "sha256:c0de"},
        "compute": {"accelerator": None},
        "weights": [{"address": "weights.qwen3", "mount_location": "/app/qwen3"}],
        "runtime": {
            "start_commands": ["pip install x", "python train.py"],
            "environment_variables": {
                "LR": "1e-5",
                "WANDB_API_KEY": {"secret": "wandb"},
                "BT_WORKING_DIR": {"secret": "wandb"},
            },
            "checkpointing_config": {"enabled": False},
            "cache_config": {"enabled": False},
        },
    }
    run = run_of(S.DEPLOYING)
    where = run_paths(node, "demo", run, 0)
    seat = RankAssignment(node, cast(NodeAgent, None), ClusterSpec())
    told = build_run_spec(
        DesiredResource(JOB, "local", attributes),
        run,
        PreparedRank(PlacedRank(0, seat, where), "sha256:a", None, None),
        "lineage",
        {"weights.qwen3": "1157"},
        {
            "store": {},
            "load": [],
            "follows": [],
            "turn": {"apply": "a", "index": 0},
            "cache": None,
            "gang": None,
            "container": None,
            "batch": None,
        },
    )
    assert (told["key"], told["lineage"], told["code"]) == ("key", "lineage", "sha256:c0de")
    assert told["commands"] == ["pip install x", "python train.py"]
    assert told["environment"]["LR"] == "1e-5"
    assert told["environment"]["BT_WORKING_DIR"] == where.work
    assert told["secret_environment"] == {"WANDB_API_KEY": "wandb"}
    assert told["weights"] == [
        {"name": "weights.qwen3", "listing": "1157", "mount_location": "/app/qwen3"}
    ]


STOPPED_BY_0 = {"rank": 0, "status": S.STOPPED.value, "exit_code": None, "error": None}
MISSING = {"rank": 0, "status": S.LOST.value, "exit_code": None, "error": "rank 0 is unreachable"}
GONE_1 = {**MISSING, "rank": 1, "error": "was lost: silent for 60 s"}


def test_ranks_that_heard_nothing_of_one_that_was_stopped_ended_with_it() -> None:
    """Nobody was lost: it was asked to end, and who couldn't be told took its silence for that."""
    first = answer(S.STOPPED, ended_at=1.0, root_cause=STOPPED_BY_0)
    second = answer(
        S.STOPPED, ended_at=2.0, root_cause=MISSING, error="stopped because rank 0 was lost"
    )

    now = with_status(run_of(S.RUNNING, S.RUNNING), [first, second])

    assert (now.status, now.error) == (S.STOPPED, None)
    assert [rank.error for rank in now.ranks] == [None, "ended with rank 0"]


@pytest.mark.parametrize("away", [False, True])
def test_a_run_that_was_to_end_is_stopped_whoever_was_silent_then(away: bool) -> None:
    """A minute without a word, amid which somebody wants its end: that is no loss that another run makes good."""
    because = "stopped because rank 1 was lost"
    first = answer(S.STOPPED, started_at=0.5, ended_at=1.0, root_cause=GONE_1, error=because)
    second = None if away else answer(S.STOPPED, ended_at=2.0, root_cause=MISSING)
    run = run_of(S.RUNNING, S.RUNNING)

    told = with_status(replace(run, stop_requested=True), [first, second])
    untold = with_status(run, [first, second])

    assert (told.status, told.error) == (S.STOPPED, None)
    assert told.ranks[0].error == "ended with rank 1"
    assert (untold.status, untold.error) == (S.LOST, "rank 1 was lost: silent for 60 s")


def test_an_interrupted_run_is_lost() -> None:
    """Unless its user stopped it: a platform that takes a machine back is no reason to leave the job."""
    error = "interrupted: the machine is taken back at 13:00 UTC"
    run, stopped = run_of(S.RUNNING), answer(S.STOPPED, error=error)

    found = with_status(run, [stopped])
    assert (found.status, found.error, found.interrupted) == (S.LOST, error, True)
    by_user = with_status(replace(run, stop_requested=True), [stopped])
    assert (by_user.status, by_user.interrupted) == (S.STOPPED, False)


def test_a_gang_is_interrupted_with_one_machine() -> None:
    """The other ranks report why, also if that machine is gone."""
    error = "interrupted: the machine is taken back at 13:00 UTC"
    cause = {"rank": 1, "status": S.STOPPED.value, "exit_code": None, "error": error}
    other = answer(S.STOPPED, root_cause=cause)
    for taken_back in (answer(S.STOPPED, error=error, root_cause=cause), None):
        found = with_status(run_of(S.RUNNING, S.RUNNING), [other, taken_back])
        assert (found.status, found.interrupted) == (S.LOST, True)
        assert found.error == f"rank 1: {error}"
