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
from trainctl.resources.delivery import RankAssignment
from trainctl.resources.runs.launch import PlacedRank, _ensure_ended, start_together
from trainctl.resources.runs.run_control import RunControl

NODE = Node("lab", "lab-0", "local", root="/cache/lab-0", data="/data", python="python3")
RUN = RunRecord("abc1234", 1, "key")


def rank(
    calls: list[tuple[str, Mapping[str, Any]]], error: TrainctlError | None = None
) -> PlacedRank:
    """A rank on a node that notes what it is told, and may refuse."""

    def call(method: UntypedMethod, request: Mapping[str, Any], **_: object) -> dict[str, Any]:
        calls.append((method.name, request))
        if error is not None:
            raise error
        return {}

    agent = cast(NodeAgent, SimpleNamespace(call=call))
    return PlacedRank(
        0,
        RankAssignment(NODE, agent, ClusterSpec()),
        run_paths(NODE, "demo", RUN, 0),
    )


def test_who_is_cut_off_learns_that_the_run_may_go_on() -> None:
    cut = NodeUnreachable("lab/lab-0: connection lost")
    lone = rank([], cut)
    step, control = cast(ApplyStep, None), cast(RunControl, None)
    with pytest.raises(NodeUnreachable) as told:
        start_together(step, control, RUN, [lone], [cast(StartRequest, {})], str)
    assert "may be live there" in told.value.detail
    assert "Apply again" in told.value.detail


def test_what_may_have_been_started_is_ended() -> None:
    """By its key and without grace: nobody has seen it run."""
    calls: list[tuple[str, Mapping[str, Any]]] = []
    _ensure_ended(rank(calls), RUN)
    assert calls == [("stop", {"root": "/cache/lab-0", "key": "key", "grace_seconds": 0})]


@pytest.mark.parametrize("error", [NodeUnreachable("silent"), NodeError("x"), StorageError("full")])
def test_where_nobody_can_tell_the_attempt_stays_open(error: TrainctlError) -> None:
    """Unreachable is what leaves an intent open, so that the next apply finds out."""
    with pytest.raises(NodeUnreachable, match="it is unknown whether run abc1234 was started"):
        _ensure_ended(rank([], error), RUN)
