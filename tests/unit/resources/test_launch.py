"""A start that ends in an error: whoever reads that a run was not deployed starts another."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainctl.apply.step import ApplyStep
from trainctl.base.protocol.method import UntypedMethod
from trainctl.base.protocol.runs import StartRequest
from trainctl.errors import NodeError, NodeUnreachable, StorageError, TrainctlError
from trainctl.inputs.environment import run_paths
from trainctl.model.run import RunRecord
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.resources.delivery import PlacedRank
from trainctl.resources.runs.launch import start_together
from trainctl.resources.runs.run_control import RunControl

NODE = Node("lab", "lab-0", "local", root="/cache/lab-0", data="/data", python="python3")
RUN = RunRecord("abc1234", 1, "key")


def start(
    calls: list[tuple[str, Mapping[str, Any]]], errors: Mapping[str, TrainctlError]
) -> RunRecord:
    """Start a run of one rank on a node that logs its calls and fails those of some methods."""

    def call(method: UntypedMethod, request: Mapping[str, Any], **_: object) -> dict[str, Any]:
        calls.append((method.name, request))
        if method.name in errors:
            raise errors[method.name]
        return {}

    agent = cast(NodeAgent, SimpleNamespace(call=call))
    rank = PlacedRank(0, NODE, agent, ClusterSpec(), run_paths(NODE, "demo", RUN, 0))
    step, control = cast(ApplyStep, None), cast(RunControl, None)
    return start_together(step, control, RUN, [rank], [cast(StartRequest, {})], str)


def test_who_is_cut_off_learns_that_the_run_may_go_on() -> None:
    cut = NodeUnreachable("lab/lab-0: connection lost")
    with pytest.raises(NodeUnreachable) as messages:
        start([], {"start": cut})
    assert "may be live there" in messages.value.detail
    assert "Apply again" in messages.value.detail


def test_what_may_have_been_started_is_ended() -> None:
    """By its key and without grace: nobody has seen it run."""
    calls: list[tuple[str, Mapping[str, Any]]] = []
    with pytest.raises(NodeError):
        start(calls, {"start": NodeError("refused")})
    stop = ("stop", {"root": "/cache/lab-0", "key": "key", "grace_seconds": 0})
    assert calls == [("start", {}), stop]


@pytest.mark.parametrize("error", [NodeUnreachable("silent"), NodeError("x"), StorageError("full")])
def test_where_nobody_can_tell_the_attempt_stays_open(error: TrainctlError) -> None:
    """Unreachable is what leaves an intent open, so that the next apply finds out."""
    with pytest.raises(NodeUnreachable, match="it is unknown whether run abc1234 was started"):
        start([], {"start": NodeError("refused"), "stop": error})
