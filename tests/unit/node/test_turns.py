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
    made = FakeNvidiaGpus.make(node.base / "tools", 4)
    monkeypatch.setenv("PATH", f"{made.tools}:{os.environ['PATH']}")
    return made


def waits(node: NodeHarness, key: str) -> str | None:
    """What a run waits for."""
    found = node.status(key)
    return found["waiting"] if found["status"] == PENDING else None


def wants(count: int | None) -> dict[str, Any]:
    """Of a specification: so many GPUs, all for None."""
    return {"count": count, "kind": "", "declared": None}


def held(node: NodeHarness, key: str, **changes: Any) -> Path:
    """Start a run that goes on until the file is removed."""
    gate = node.base / f"gate-{key}"
    gate.touch()
    turn = {"apply": "apply-1", "index": len(list(node.root.glob("runs/*")))}
    command = f"while test -e {gate}; do sleep 0.05; done"
    node.start(node.spec(command, **{"key": key, "turn": turn, **changes}))
    return gate


def test_a_job_sees_the_gpus_that_it_claimed(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """By their numbers, the lowest that are free first; a second run gets others."""
    show = "echo $BT_NUM_GPUS: $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
    first = held(node, "one", gpus=wants(1))

    node.run(show, key="two", gpus=wants(2))

    assert node.log("two") == "2: 1,2 PCI_BUS_ID\n"
    assert node.status("two")["status"] == COMPLETED
    first.unlink()


def test_all_or_none(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """A run that wants more GPUs than are free holds none of them while it waits, and starts as soon as there are enough."""
    first = held(node, "one", gpus=wants(2))
    second = held(node, "two", gpus=wants(None))

    assert waits(node, "two") == f"waits for 4 of 4 GPUs, taken by PID {node.status('one')['pid']}"
    first.unlink()
    wait_for(lambda: node.status("two")["status"] == RUNNING)
    second.unlink()
    assert node.ended("two")["status"] == COMPLETED


def test_nobody_passes_in_the_queue(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """A run that wants fewer GPUs stays behind one that was there before; priority goes first, also when it is changed later."""
    first = held(node, "first", gpus=wants(3))
    held(node, "large", gpus=wants(4)).unlink()
    held(node, "small", gpus=wants(1)).unlink()
    gate = held(node, "urgent", gpus=wants(4), priority=5)
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


def test_a_gpu_that_another_process_uses_is_taken(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """It is left out while some process computes on it, although nobody claims it."""
    gpus.compute_on(gpus.ids[0])

    node.run("echo $CUDA_VISIBLE_DEVICES", key="one", gpus=wants(3))

    assert node.log("one") == "1,2,3\n"


def test_a_run_that_waits_names_the_processes_that_have_the_gpus(
    node: NodeHarness, gpus: FakeNvidiaGpus
) -> None:
    """Supervisors that claimed them, and a process that computes on one; two of them at most."""
    gpus.compute_on(gpus.ids[3])
    first = held(node, "one", gpus=wants(1))
    other = held(node, "other", gpus=wants(2))

    held(node, "two", gpus=wants(1)).unlink()

    one, two = (node.status(key)["pid"] for key in ("one", "other"))
    taken = f"waits for 1 of 4 GPUs, taken by PID {one}, PID {two} and 1 more"
    wait_for(lambda: waits(node, "two") in (taken, taken[: -len(" and 1 more")]))
    other.unlink()
    assert node.ended("two")["status"] == COMPLETED
    first.unlink()
    node.ended("one")
    gpus.compute_on(*gpus.ids)
    held(node, "last", gpus=wants(1))
    wait_for(lambda: waits(node, "last") == f"waits for 1 of 4 GPUs, taken by PID {os.getpid()}")
    node.call("stop", {"key": "last", "grace_seconds": 0})


def test_a_claim_under_another_directory_is_named_by_its_process(
    node: NodeHarness, gpus: FakeNvidiaGpus, tmp_path: Path
) -> None:
    """A run of this one that was lost is not named for it."""
    held(node, "lost", gpus=wants(4))
    os.kill(node.status("lost")["pid"], signal.SIGKILL)
    (tmp_path / "other").mkdir()
    other = NodeHarness(tmp_path / "other")
    gate = held(other, "theirs", gpus=wants(3))
    theirs = f"PID {other.status('theirs')['pid']}"

    held(node, "mine", gpus=wants(2)).unlink()

    assert waits(node, "mine") == f"waits for 2 of 4 GPUs, taken by {theirs}"
    found = node.call("inspect", {"gpus": None})["gpus"]
    assert {(one["claimed_by"], one["project"]) for one in found} == {(None, None), (theirs, None)}
    gate.unlink()
    assert node.ended("mine")["status"] == COMPLETED
    other.close()


def test_a_plans_look_asks_once_which_gpus_there_are(
    node: NodeHarness, gpus: FakeNvidiaGpus
) -> None:
    """The tool may take seconds; what computes on them is another question."""
    tool = gpus.tools / "nvidia-smi"
    tool.write_text(tool.read_text().replace("\n", '\necho "$1" >> "${0%/*}/asked"\n', 1))
    free_resources = {"root": str(node.root), "declared": None, "accelerators": ["H100"]}

    found = node.call(
        "facts",
        {"data": str(node.data), "accelerators": ["H100"], "free_resources": free_resources},
    )

    assert [one["free"] for one in found["free_resources"]["gpus"]] == [True] * 4
    asked = (gpus.tools / "asked").read_text().splitlines()
    assert [one.partition("=")[0] for one in asked] == ["--query-gpu", "--query-compute-apps"]


def test_the_gpus_of_a_run_that_makes_way_are_free(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """For whoever asks on behalf of what comes in its place, and for nobody else."""
    gate = held(node, "mine", gpus=wants(3))
    free_resources = {"root": str(node.root), "declared": None, "accelerators": ["H100"]}

    asked = [
        node.call("free_resources", {**free_resources, "replaced_key": key})
        for key in (None, "mine", "other")
    ]
    gate.unlink()

    assert [sum(one["free"] for one in said["gpus"]) for said in asked] == [1, 4, 1]
    assert [said["live"] for said in asked] == [["mine"], [], ["mine"]]


def test_what_can_never_be_is_refused(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """More GPUs than the host has end the run at once instead of making it wait for ever."""
    status = node.run("true", gpus=wants(5))

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert status["error"] == "5 GPUs required, but the node has 4."


def test_claims_vanish_with_their_holder(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """A supervisor that is killed takes its job with it, and then its GPUs are free; one that waits leaves the queue."""
    held(node, "one", gpus=wants(4))
    held(node, "two", gpus=wants(4), priority=1)
    third = held(node, "three", gpus=wants(4))
    third.unlink()
    assert waits(node, "three") == "waits for 4 of 4 GPUs, 1 ahead"

    os.kill(node.status("two")["pid"], signal.SIGKILL)
    os.kill(node.status("one")["pid"], signal.SIGKILL)

    assert node.ended("three")["status"] == COMPLETED
    assert node.status("one")["status"] == "TRAINING_JOB_LOST"


def test_a_run_that_waits_can_be_stopped(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """It never starts, and nobody waits behind it."""
    first = held(node, "one", gpus=wants(4))
    held(node, "two", gpus=wants(4))
    third = held(node, "three", gpus=wants(4))
    third.unlink()

    status = node.call("stop", {"key": "two", "grace_seconds": 0})

    assert (status["status"], status["started_at"]) == ("TRAINING_JOB_STOPPED", None)
    first.unlink()
    assert node.ended("three")["status"] == COMPLETED


def test_programs_of_the_job_hold_no_claim(node: NodeHarness, gpus: FakeNvidiaGpus) -> None:
    """Sockets of claims are not among the files of the job's processes."""
    node.run("ls -l /proc/self/fd | grep -c socket || true", gpus=wants(2))

    assert node.log() == "0\n"


def test_only_so_many_runs_of_a_sweep_go_on_at_once(node: NodeHarness) -> None:
    """A slot is claimed as a GPU is; a run of another sweep doesn't wait for it."""
    sweep = {"name": f"{node.base} job.sweep", "count": 1}
    first = held(node, "one", slots=sweep)
    held(node, "two", slots=sweep).unlink()
    held(node, "other", slots={**sweep, "name": f"{node.base} job.other"}).unlink()

    assert node.ended("other")["status"] == COMPLETED
    assert waits(node, "two") == "waits for one of 1 slots of job.sweep"
    first.unlink()
    assert node.ended("two")["status"] == COMPLETED


def test_slots_can_be_added_while_runs_wait(node: NodeHarness) -> None:
    """The waiting run takes one of the new ones."""
    sweep = {"name": f"{node.base} job.sweep", "count": 1}
    first = held(node, "one", slots=sweep)
    held(node, "two", slots=sweep).unlink()

    node.call("set_queue_order", {"key": "two", "slots": {**sweep, "count": 2}})

    assert node.ended("two")["status"] == COMPLETED
    first.unlink()


def test_runs_of_one_apply_go_on_in_the_order_of_its_plan(node: NodeHarness) -> None:
    """However they arrive: they stand where the first of them does, before another apply's that came between."""
    sweep, order = {"name": f"{node.base} job.sweep", "count": 1}, node.base / "order"
    first = held(node, "one", slots=sweep, turn={"apply": "a", "index": 0})
    for key, apply, index in (("late", "a", 2), ("other", "b", 0), ("early", "a", 1)):
        turn = {"apply": apply, "index": index}
        node.start(node.spec(f"echo {key} >>{order}", key=key, slots=sweep, turn=turn))

    first.unlink()

    assert {node.ended(key)["status"] for key in ("late", "other", "early")} == {COMPLETED}
    assert order.read_text().split() == ["early", "late", "other"]


def test_the_date_of_an_apply_goes_when_none_of_its_runs_is_left(node: NodeHarness) -> None:
    """With the first forgetting after a day."""
    node.run("true", turn={"apply": "a", "index": 0})
    (date,) = (node.root / "queue/applies").iterdir()
    os.utime(date, (0, 0))
    seen = []
    for _ in range(2):
        node.call("forget", {"lineage": "other"})
        seen.append(date.exists())
        node.call("remove", {"key": "run-1"})

    assert seen == [True, False]


def test_how_many_slots_there_are_is_told_as_it_changes(node: NodeHarness) -> None:
    """By the first that waits, and by those behind it."""
    sweep = {"name": f"{node.base} job.sweep", "count": 1}
    held(node, "one", slots=sweep)
    for key in ("two", "three", "four"):
        held(node, key, slots=sweep)

    for key in ("two", "three", "four"):
        node.call("set_queue_order", {"key": key, "slots": {**sweep, "count": 2}})

    wait_for(lambda: node.status("two")["status"] == RUNNING)
    told = "waits for one of 2 slots of job.sweep"
    wanted = {"three": told, "four": f"{told}, 1 ahead"}
    wait_for(lambda: {key: waits(node, key) for key in wanted} == wanted)
    assert {key: waits(node, key) for key in wanted} == wanted


def test_a_run_starts_when_those_it_follows_completed(node: NodeHarness) -> None:
    """It waits with no caller left; its secrets wait in memory."""
    gate = held(node, "prep")
    follows = [{"key": "prep", "address": "job.prep"}]
    spec = node.spec("echo $TOKEN", key="sft", follows=follows, secret_environment={"TOKEN": "t"})
    node.start(spec, {"t": "value-of-a-secret"})

    assert waits(node, "sft") == "waits for job.prep to complete"
    gate.unlink()
    assert node.ended("sft")["status"] == COMPLETED
    assert node.log("sft") == "value-of-a-secret\n"


@pytest.mark.parametrize(
    ("how", "said"), [("fails", "failed"), ("stops", "was stopped"), ("dies", "was lost")]
)
def test_a_run_whose_predecessor_does_not_complete_is_not_deployed(
    node: NodeHarness, how: str, said: str
) -> None:
    """Whatever the reason: it ends with that, to be planned again."""
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
    assert status["error"] == f"job.prep did not complete: run 1 {said}."
