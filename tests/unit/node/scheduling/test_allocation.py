"""Runs that wait for others, for slots and for GPUs, with nobody logged in."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.node_program.nodes import NodeHarness, wait_for

pytestmark = pytest.mark.integration

PENDING = "TRAINING_JOB_PENDING"
RUNNING = "TRAINING_JOB_RUNNING"
COMPLETED = "TRAINING_JOB_COMPLETED"


@pytest.fixture
def gpus(node: NodeHarness, monkeypatch: pytest.MonkeyPatch) -> FakeNvidiaGpus:
    """Four GPUs that nobody else on this machine knows."""
    gpus = FakeNvidiaGpus.make(node.base / "tools", 4)
    monkeypatch.setenv("PATH", f"{gpus.tools}:{os.environ['PATH']}")
    return gpus


def waits(node: NodeHarness, key: str) -> str | None:
    """What a run waits for."""
    status = node.status(key)
    return status["waiting"] if status["status"] == PENDING else None


def wants(count: int | None) -> dict[str, Any]:
    """GPUs of a job on a host that reports them; None for all."""
    accelerator = None if count is None else f"H100:{count}"
    return {"compute": {"accelerator": accelerator}, "declared_gpus": None}


def held(node: NodeHarness, key: str, **changes: Any) -> Path:
    """Start a run that goes on until the file is removed."""
    gate = node.base / f"gate-{key}"
    gate.touch()
    turn = {"apply": "apply-1", "index": len(list(node.root.glob("runs/*")))}
    command = f"while test -e {gate}; do sleep 0.05; done"
    node.start(node.spec(command, **{"key": key, "turn": turn, **changes}))
    return gate


def test_a_job_sees_the_gpus_that_it_claimed(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """The lowest that are free and on which no other process computes; its processes don't inherit the claim."""
    gpus.compute_on(gpus.ids[1])
    first = held(node, "first", **wants(1))

    show = "echo $BT_NUM_GPUS: $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
    node.run(show, "ls -l /proc/self/fd | grep -c socket || true", key="second", **wants(2))

    assert node.log("second") == "2: 2,3 PCI_BUS_ID\n0\n"
    first.unlink()


def test_a_run_that_waits_for_gpus_holds_none(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    first = held(node, "first", **wants(2))
    second = held(node, "second", **wants(None))

    taken = f"taken by PID {node.status('first')['pid']}"
    assert waits(node, "second") == f"waits for 4 of 4 GPUs, {taken}"
    first.unlink()
    wait_for(lambda: node.status("second")["status"] == RUNNING)
    second.unlink()
    assert node.ended("second")["status"] == COMPLETED


def test_the_queue_is_ordered_by_priority_and_arrival(
    node: NodeHarness, gpus: FakeNvidiaGpus
) -> None:
    """A run that wants fewer GPUs doesn't pass; a changed priority counts."""
    first = held(node, "first", **wants(3))
    held(node, "large", **wants(4)).unlink()
    held(node, "small", **wants(1)).unlink()
    gate = held(node, "urgent", **wants(4), priority=5)
    taken = f"taken by PID {node.status('first')['pid']}"
    assert waits(node, "urgent") == f"waits for 4 of 4 GPUs, {taken}"
    wait_for(lambda: waits(node, "small") == "waits for 1 of 4 GPUs, 2 ahead")

    node.call("set_queue_order", {"key": "small", "priority": 9})

    assert node.ended("small")["status"] == COMPLETED
    assert waits(node, "large") == "waits for 4 of 4 GPUs, 1 ahead"
    first.unlink()
    wait_for(lambda: node.status("urgent")["status"] == RUNNING)
    gate.unlink()
    assert node.ended("large")["status"] == COMPLETED


def test_the_gpus_of_a_run_are_free_for_its_replacement(
    node: NodeHarness, gpus: FakeNvidiaGpus
) -> None:
    gate = held(node, "mine", **wants(3))
    request = {"root": str(node.root), "declared": None, "accelerators": ["H100"]}

    answers = [
        node.call("free_resources", {**request, "replaced_key": key})
        for key in (None, "mine", "other")
    ]
    gate.unlink()

    assert [sum(gpu["free"] for gpu in answer["gpus"]) for answer in answers] == [1, 4, 1]
    assert [answer["live"] for answer in answers] == [["mine"], [], ["mine"]]


def test_more_gpus_than_the_host_has_are_refused(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    status = node.run("true", **wants(5))

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert status["error"] == "5 H100 GPUs required, but the node has 4."


def test_a_stopped_or_killed_run_leaves_the_queue(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    first = held(node, "first", **wants(4))
    for key in ("stopped", "killed", "last"):
        gate = held(node, key, **wants(4))
    gate.unlink()

    status = node.call("stop", {"key": "stopped", "grace_seconds": 0})
    os.kill(node.status("killed")["pid"], signal.SIGKILL)

    assert (status["status"], status["started_at"]) == ("TRAINING_JOB_STOPPED", None)
    first.unlink()
    assert node.ended("last")["status"] == COMPLETED


def test_runs_of_a_sweep_wait_for_its_slots(node: NodeHarness) -> None:
    """A run of another sweep doesn't; slots that are added count at once."""
    sweep = {"name": f"{node.base} job.sweep", "count": 1}
    first = held(node, "first", slots=sweep)
    held(node, "second", slots=sweep).unlink()
    held(node, "third", slots=sweep).unlink()
    held(node, "other", slots={**sweep, "name": f"{node.base} job.other"}).unlink()

    assert node.ended("other")["status"] == COMPLETED
    assert waits(node, "second") == "waits for one of 1 slots of job.sweep"
    for key in ("second", "third"):
        node.call("set_queue_order", {"key": key, "slots": {**sweep, "count": 2}})
    assert {node.ended(key)["status"] for key in ("second", "third")} == {COMPLETED}
    first.unlink()


def test_runs_of_an_apply_go_on_in_the_order_of_its_plan(node: NodeHarness) -> None:
    """In the place of the first of them, before another apply's that came between."""
    sweep, order = {"name": f"{node.base} job.sweep", "count": 1}, node.base / "order"
    first = held(node, "first", slots=sweep, turn={"apply": "a", "index": 0})
    for key, apply, index in (("late", "a", 2), ("other", "b", 0), ("early", "a", 1)):
        turn = {"apply": apply, "index": index}
        node.start(node.spec(f"echo {key} >>{order}", key=key, slots=sweep, turn=turn))

    first.unlink()

    assert {node.ended(key)["status"] for key in ("late", "other", "early")} == {COMPLETED}
    assert order.read_text().split() == ["early", "late", "other"]


def test_a_run_starts_when_those_it_follows_completed(node: NodeHarness) -> None:
    """With its secrets, which wait in memory."""
    gate = held(node, "prep")
    follows = [{"key": "prep", "address": "job.prep"}]
    spec = node.spec(
        "echo $TOKEN", key="sft", follows=follows, environment_variables={"TOKEN": {"secret": "t"}}
    )
    node.start(spec, {"t": "value-of-a-secret"})

    assert waits(node, "sft") == "waits for job.prep to complete"
    gate.unlink()
    assert node.ended("sft")["status"] == COMPLETED
    assert node.log("sft") == "value-of-a-secret\n"


@pytest.mark.parametrize(
    ("how", "cause"), [("fails", "failed"), ("stops", "was stopped"), ("dies", "was lost")]
)
def test_a_run_whose_predecessor_does_not_complete_is_not_deployed(
    node: NodeHarness, how: str, cause: str
) -> None:
    gate = node.base / "gate"
    gate.touch()
    node.start(node.spec(f"while test -e {gate}; do sleep 0.05; done; exit 1", key="prep"))
    node.start(node.spec("true", key="sft", follows=[{"key": "prep", "address": "job.prep"}]))
    assert waits(node, "sft")

    if how == "fails":
        gate.unlink()
    elif how == "stops":
        node.call("stop", {"key": "prep", "grace_seconds": 0})
    else:
        os.kill(node.status("prep")["pid"], signal.SIGKILL)

    status = node.ended("sft")
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert status["error"] == f"job.prep did not complete: run 1 {cause}."
