"""What the reports of a run's nodes add up to, and the spec that a node gets of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.cases import cases
from trainctl.base.protocol.runs import RunReport
from trainctl.errors import NodeUnreachable
from trainctl.inputs.environment import run_paths
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import ClusterSpec, DesiredResource
from trainctl.model.specs.runtime import CheckpointSelector
from trainctl.plugin_api.provider import Capabilities, Node, Provider, ResourceStatus
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import Agents
from trainctl.resources.delivery import PlacedRank
from trainctl.resources.loading import CheckpointLoader
from trainctl.resources.runs.launch import PreparedRank, build_run_spec
from trainctl.resources.runs.run_control import (
    RunControl,
    are_lost,
    with_partial_status,
    with_status,
)

JOB = Address.parse("job.sft")
S = RunStatus
SILENT = {"rank": 1, "status": S.LOST.value, "exit_code": None, "error": "was lost: silence"}


def run_of(*statuses: RunStatus, **more: Any) -> RunRecord:
    """A run with a rank of each status."""
    ranks = tuple(RankRecord(n, f"lab/lab-{n}", status) for n, status in enumerate(statuses))
    return RunRecord("abc1234", 3, "key", ranks=ranks, **{"status": S.RUNNING, **more})


def report(status: RunStatus, **more: Any) -> RunReport:
    values: Any = {"key": "key", "status": status.value, "supervised": status.live, **more}
    return cast(RunReport, values)


def _report_of_case(values: dict[str, Any] | None) -> RunReport | None:
    if values is None:
        return None
    more = {name: value for name, value in values.items() if name != "status"}
    if cause := more.get("root_cause"):
        more["root_cause"] = {**cause, "status": RunStatus[cause["status"]].value}
    return report(RunStatus[values["status"]], **more)


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, RunStatus) else value


@pytest.mark.parametrize("case", cases("runs/status"))
def test_reports_add_up(case: dict[str, Any]) -> None:
    more = case.get("run", {})
    if "status" in more:
        more = {**more, "status": RunStatus[more["status"]]}
    run = run_of(*(RunStatus[name] for name in case["ranks"]), **more)

    now = with_status(run, [_report_of_case(values) for values in case["reports"]])

    for name, value in case["expected"].items():
        if name.startswith("rank_"):
            field = name.removeprefix("rank_")
            assert [_plain(getattr(rank, field)) for rank in now.ranks] == value
        else:
            assert _plain(getattr(now, name, now.reported.get(name))) == value, name


def test_what_a_run_loaded_and_uploads_outlasts_a_node_that_forgot_it() -> None:
    run = run_of(S.RUNNING, reported={"loaded": [{"run": "a"}], "sync": {"state": "FAILED"}})
    assert with_status(run, [report(S.STOPPED)]).reported == run.reported
    assert with_status(run, [None]).reported == run.reported


def test_every_status_has_its_place() -> None:
    assert {with_status(run_of(S.RUNNING), [report(status)]).status for status in S} == set(S)


def test_partial_reports_change_their_ranks_alone() -> None:
    """The run, and the rank of a node that says nothing, stay; a rank that a node doesn't know is lost."""
    run = run_of(S.RUNNING, S.RUNNING, S.RUNNING)
    now = with_partial_status(run, {0: report(S.FAILED, exit_code=3), 2: None})

    assert [rank.status for rank in now.ranks] == [S.FAILED, S.RUNNING, S.LOST]
    assert (now.status, now.ended_at, now.error) == (S.RUNNING, None, None)


def test_a_rank_whose_node_is_silent_is_lost_once_the_others_report_it() -> None:
    """A node that can't be asked may be slow; the others' coordinator knows when it has given it up."""
    assert are_lost({1}, [report(S.STOPPED, root_cause=SILENT), None])
    assert not are_lost({1}, [report(S.RUNNING), None])
    assert not are_lost({0}, [None, report(S.STOPPED, root_cause=SILENT)])


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
        return {"runs": {"key": report(S.STOPPED, root_cause=SILENT)}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeAgent, "call", call)
        agents = Agents(lambda _: cast(Provider, provider))
        control = RunControl(agents, {cluster.address: cluster}.get)
        run, error = control.statuses([run_of(S.RUNNING, S.RUNNING)])["key"]

    assert (error, run.status, run.interrupted) == (None, S.LOST, interrupted)


def test_a_removed_cluster_has_no_checkpoints() -> None:
    """And blocks no start of other runs."""
    access: Any = SimpleNamespace(location={})
    loader = CheckpointLoader(access, RunControl(access, lambda _: None), access, access, str)
    assert loader._choose([run_of(S.COMPLETED, S.COMPLETED)], CheckpointSelector("p")) is None


def test_a_run_spec_has_no_secret_values() -> None:
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
    paths = run_paths(node, "demo", run, 0)
    rank = PlacedRank(0, node, cast(NodeAgent, None), ClusterSpec(), paths)
    spec = build_run_spec(
        DesiredResource(JOB, "local", attributes),
        run,
        PreparedRank(rank, "sha256:a", None, None),
        "lineage",
        {"weights.qwen3": "1157"},
        {"checkpoints": {}, "follows": [], "turn": {"apply": "a", "index": 0}, "gang": None},
        in_batch=False,
    )
    assert (spec["key"], spec["lineage"], spec["code"]) == ("key", "lineage", "sha256:c0de")
    assert spec["job"] == JobSpec.from_attributes(attributes).to_attributes()
    assert spec["listings"] == {"weights.qwen3": "1157"}
    assert spec["environment"]["LR"] == "1e-5"
    assert spec["environment"]["BT_WORKING_DIR"] == paths.work
