"""Runs of a job for each checkpoint of another, on one node."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base.protocol.runs import StartRequest
from trainctl.node.metrics import sampler
from trainctl.node.runs import points
from trainctl.node.runs.points import PointLog
from trainctl.node.runs.record import NodeRun
from trainctl.node.supervision import start_methods
from trainctl.node.system.layout import Layout

TRAIN = """\
for step in {steps}; do
  mkdir $BT_CHECKPOINT_DIR/checkpoint-$step; echo $step >$BT_CHECKPOINT_DIR/checkpoint-$step/model.bin; {then}
done"""
EVALUATE = """\
step=$(cat $BT_LOAD_CHECKPOINT_DIR/*/rank-0/*/model.bin); echo $KEY $step >>{log}
echo "{{\\"accuracy\\": 0.$step}}" >>$TRAINCTL_PROGRESS; {then}"""
PREFIX = "demo/train/1-{key}"


def train(
    node: NodeHarness, steps: str = "10 20 30", then: str = "", key: str = "train-1", **changes: Any
) -> dict[str, Any]:
    prefix = PREFIX.format(key=key)
    return node.spec(
        TRAIN.format(steps=steps, then=then),
        key=key,
        id=key,
        address="job.train",
        project="demo",
        store={"url": None, "prefix": prefix, "debounce_seconds": 0, "idle_seconds": 1},
        environment={"BT_CHECKPOINT_DIR": f"{node.data}/checkpoints/{prefix}/rank-0"},
        checkpointing_config={"enabled": True},
        **changes,
    )  # fmt: skip


def evaluate(
    node: NodeHarness, then: str = "", key: str = "eval-1", of: str = "train-1", **settings: Any
) -> dict[str, Any]:
    command = EVALUATE.format(log=node.base / "evaluated", then=then)
    return node.spec(
        command,
        key=key,
        id=key,
        address="job.eval",
        project="demo",
        store={"url": None, "prefix": f"demo/eval/1-{key}"},
        environment={"BT_LOAD_CHECKPOINT_DIR": f"{node.root}/runs/{key}/loaded", "KEY": key},
        follows=[{"key": of, "address": "job.train"}],
        load=[{"project": "demo", "job": "train", "run": None, "name": None, "runs": [], "optional": True, "force": False}],
        for_each_checkpoint={"job": "job.train", "every": 1, "newest_only": False, **settings},
    )  # fmt: skip


def rows(status: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["step"], row["status"], row["values"]) for row in status["evaluations"]]


def evaluated(node: NodeHarness) -> list[str]:
    return (node.base / "evaluated").read_text().splitlines()


def test_each_complete_checkpoint_is_evaluated_once(node: NodeHarness) -> None:
    node.start(train(node, then="sleep 0.5"))
    node.start(evaluate(node))
    status = node.ended("eval-1")

    assert status["status"] == "TRAINING_JOB_COMPLETED", status
    done = [(step, "completed", {"accuracy": float(f"0.{step}")}) for step in (10, 20, 30)]
    assert rows(status) == done
    assert status["results"]["accuracy"]["last"] == {"value": 0.3, "step": 30}
    assert evaluated(node) == ["eval-1 10", "eval-1 20", "eval-1 30"]
    assert node.log("eval-1").splitlines() == [
        f"==> checkpoint-{step}, step {step} <==" for step in (10, 20, 30)
    ]


def test_a_slow_sample_of_one_evaluation_is_none_of_the_next(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample begins with the last chores of an evaluation, has read what that reported, and stores it late."""

    class SlowLog(PointLog):
        def read_lines(self, seconds: float, *, is_over: bool = False) -> None:
            super().read_lines(seconds, is_over=is_over)
            time.sleep(0 if is_over else 0.3)

    node.start(train(node))
    node.ended("train-1")
    monkeypatch.setattr(points, "PointLog", SlowLog)
    monkeypatch.setattr(sampler, "_COST_RATIO", 0)
    monkeypatch.setattr(sampler, "_INTERVAL", 0)
    request = {"run": evaluate(node), "root": str(node.root), "data": str(node.data), "secrets": {}}
    start_methods.start(cast("StartRequest", request), lambda _: None)
    status = node.ended("eval-1")

    assert status["results"]["accuracy"]["last"] == {"value": 0.3, "step": 30}
    assert points.points_of(NodeRun(Layout(str(node.root)), "eval-1"))["accuracy"].count == 3


def test_a_failed_evaluation_does_not_stop_the_others(node: NodeHarness) -> None:
    node.start(train(node))
    node.ended("train-1")
    node.start(evaluate(node, then="[ $step != 20 ]"))
    status = node.ended("eval-1")

    assert [row[1] for row in rows(status)] == ["completed", "failed", "completed"]
    assert status["status"] == "TRAINING_JOB_FAILED"
    assert status["exit_code"] == 1
    assert "1 of 3 evaluations did not complete: checkpoint-20" in status["error"]


def test_which_checkpoints_are_evaluated(node: NodeHarness) -> None:
    """Each second one; the newest of those that wait; none that the trainer did not finish, or that has no step."""
    then = "mkdir -p $BT_CHECKPOINT_DIR/export; touch $BT_CHECKPOINT_DIR/export/model.bin"
    unfinished = "touch $BT_CHECKPOINT_DIR/checkpoint-40/checkpoint-is-incomplete.txt"
    node.start(train(node, steps="10 20 30 40", then=f"{then}; [ $step = 40 ] && {unfinished} || true"))  # fmt: skip
    node.ended("train-1")
    node.start(evaluate(node, every=2))
    node.start(evaluate(node, key="eval-2", newest_only=True))

    second, newest = node.ended("eval-1"), node.ended("eval-2")
    assert [row[:2] for row in rows(second)] == [(10, "skipped"), (20, "completed"), (30, "skipped")]  # fmt: skip
    assert [row[:2] for row in rows(newest)] == [(10, "skipped"), (20, "skipped"), (30, "completed")]  # fmt: skip


def test_retention_keeps_checkpoints_that_wait(node: NodeHarness) -> None:
    """A checkpoint that is gone all the same is reported, and the next one is evaluated."""
    store = {"url": f"file://{node.base}/store", "prefix": PREFIX.format(key="train-1"), "debounce_seconds": 0, "idle_seconds": 1}  # fmt: skip
    release = f"until [ -e {node.base}/go ]; do sleep 0.1; done"
    spec = {**train(node, then=release, checkpoints={"keep_last": 1}), "store": store}
    spec["job"]["runtime"]["start_commands"] = [
        f"{release}; " + TRAIN.format(steps="10 20 30", then="sleep 2.5")
    ]
    node.start(spec)
    hold = f"until [ -e {node.base}/more ]; do sleep 0.1; done"
    node.start({**evaluate(node, then=hold), "store": store})
    (node.base / "go").touch()
    node.ended("train-1")
    saved = node.base / "store" / PREFIX.format(key="train-1")
    assert {path.name for path in saved.glob("rank-0/*")} == {"checkpoint-20", "checkpoint-30"}
    wait_for(lambda: len(node.status("eval-1")["evaluations"]) == 3)
    (saved / ".complete/rank-0/checkpoint-20.json").unlink()
    (node.base / "more").touch()

    status = node.ended("eval-1")
    assert [row[:2] for row in rows(status)] == [(10, "completed"), (20, "failed"), (30, "completed")]  # fmt: skip
    assert "no complete checkpoint 'checkpoint-20' of job train" in status["error"]


def test_retention_is_applied_when_no_checkpoint_waits(node: NodeHarness) -> None:
    store = {"url": f"file://{node.base}/store", "prefix": PREFIX.format(key="train-1"), "debounce_seconds": 0, "idle_seconds": 1}  # fmt: skip
    release = f"until [ -e {node.base}/go ]; do sleep 0.1; done"
    spec = {**train(node, checkpoints={"keep_last": 1}), "store": store}
    spec["job"]["runtime"]["start_commands"].insert(0, release)
    node.start(spec)
    node.start({**evaluate(node), "store": store})
    waiting = wait_for(lambda: node.status("eval-1")["waiting"])
    (node.base / "go").touch()
    status = node.ended("eval-1")

    assert waiting == "waits for checkpoints of job.train"
    assert [row[:2] for row in rows(status)] == [(step, "completed") for step in (10, 20, 30)]
    saved = node.base / "store" / PREFIX.format(key="train-1")
    assert {path.name for path in saved.glob("rank-0/*")} == {"checkpoint-30"}


def test_stop_ends_a_run_that_waits(node: NodeHarness) -> None:
    node.start(train(node, then="sleep 60"))
    node.start(evaluate(node))
    status = node.call("stop", {"key": "eval-1", "grace_seconds": 5})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert node.status("train-1")["supervised"]


def kill(status: dict[str, Any]) -> None:
    os.kill(status["pid"], signal.SIGKILL)


def test_a_killed_supervisor_neither_repeats_nor_forgets(node: NodeHarness) -> None:
    """Another one goes on; the evaluation that was running is shown as interrupted."""
    node.start(train(node, then="sleep 1"))
    node.start(evaluate(node, then=f"[ $step != 10 ] || [ -e {node.base}/go ] || sleep 60"))
    wait_for(lambda: (node.base / "evaluated").exists())
    kill(node.status("eval-1"))

    status = node.ended("eval-1")
    assert [row[:2] for row in rows(status)] == [(10, "interrupted"), (20, "completed"), (30, "completed")]  # fmt: skip
    assert evaluated(node) == ["eval-1 10", "eval-1 20", "eval-1 30"]
    assert "checkpoint-10 (supervisor killed)" in status["error"]


def test_a_run_without_any_process_waits_to_be_resumed(node: NodeHarness) -> None:
    node.start(train(node, then="sleep 2"))
    node.start(evaluate(node))
    wait_for(lambda: (node.base / "evaluated").exists())
    first = node.status("eval-1")
    parent = int(Path(f"/proc/{first['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (parent, first["pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not node.status("eval-1")["supervised"])
    waiting = node.status("eval-1")
    assert (waiting["status"], waiting["waiting"]) == ("TRAINING_JOB_PENDING", "waiting for apply or reconcile to resume it")  # fmt: skip
    node.call("set_secrets", {"key": "eval-1", "data": str(node.data), "secrets": None})

    status = node.ended("eval-1")
    assert sorted(evaluated(node)) == ["eval-1 10", "eval-1 20", "eval-1 30"]
    assert len(rows(status)) == 3


def test_stop_ends_the_evaluations(node: NodeHarness) -> None:
    node.start(train(node))
    node.start(evaluate(node, then="sleep 60"))
    wait_for(lambda: (node.base / "evaluated").exists())
    status = node.call("stop", {"key": "eval-1", "grace_seconds": 0})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert status["evaluations"][0]["status"] == "interrupted"
    assert evaluated(node) == ["eval-1 10"]


@pytest.mark.parametrize("metric", ["loss", "eval.accuracy"])
def test_the_best_checkpoints_are_kept(node: NodeHarness, metric: str) -> None:
    """And the newest; by what the run itself reported, or by what the evaluations did."""
    best = {"metric": metric, "mode": "min", "count": 1}
    losses = "for pair in 10:3 20:1 30:2; do echo '{\"step\": '${pair%:*}', \"loss\": '${pair#*:}'}' >>$TRAINCTL_PROGRESS; done"  # fmt: skip
    store = {"url": f"file://{node.base}/store", "prefix": PREFIX.format(key="train-1"), "debounce_seconds": 0, "idle_seconds": 1}  # fmt: skip
    hold = f"{losses}; until [ -e {node.base}/go ]; do sleep 0.1; done"
    spec = {**train(node, steps="10 20 30 40", checkpoints={"keep_best": best}), "store": store}
    spec["job"]["runtime"]["start_commands"].insert(0, hold)
    node.start(spec)
    if metric != "loss":
        node.start({**evaluate(node), "store": store})
    (node.base / "go").touch()
    node.ended("train-1")
    if metric != "loss":
        node.ended("eval-1")

    kept = {int(path.name.partition("-")[2]) for path in (node.base / "store").rglob("rank-0/checkpoint-*") if path.is_dir()}  # fmt: skip
    assert kept == ({20, 40} if metric == "loss" else {10, 40})


def test_evaluations_claim_gpus_one_after_the_other(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait while the training has the only GPU, and return it after each."""
    gpus = FakeNvidiaGpus.make(node.base / "tools", 1)
    monkeypatch.setenv("PATH", f"{gpus.tools}:{os.environ['PATH']}")
    wanted: dict[str, Any] = {"compute": {"accelerator": "H100:1"}, "declared_gpus": None}
    release = f"until [ -e {node.base}/go ]; do sleep 0.1; done"
    spec = train(node, steps="10 20", **wanted)
    spec["job"]["runtime"]["start_commands"].append(release)
    node.start(spec)
    show = f"echo $CUDA_VISIBLE_DEVICES >>{node.base}/seen"
    gpu_spec = evaluate(node, then=show)
    gpu_spec["job"]["compute"] = {**gpu_spec["job"]["compute"], **wanted["compute"]}
    node.start({**gpu_spec, "declared_gpus": None})
    waiting = wait_for(lambda: (text := node.status("eval-1")["waiting"]) and "GPU" in text and text)  # fmt: skip
    (node.base / "go").touch()
    status = node.ended("eval-1")

    assert "waits for 1 of 1 GPUs, taken by PID" in waiting
    assert [row[:2] for row in rows(status)] == [(10, "completed"), (20, "completed")]
    assert (node.base / "seen").read_text() == "0\n0\n"
    node.start(node.spec("true", key="later", **wanted))
    assert node.ended("later")["status"] == "TRAINING_JOB_COMPLETED"


@pytest.mark.parametrize("saved_by_both", [(), (10,)])
def test_a_checkpoint_waits_for_the_parts_of_all_ranks(
    node: NodeHarness, saved_by_both: tuple[int, ...]
) -> None:
    """Until the training has ended; then all have the same ranks. Other runs that the job depends on are not evaluated."""
    store = {"url": f"file://{node.base}/store", "prefix": PREFIX.format(key="train-1"), "debounce_seconds": 0, "idle_seconds": 1}  # fmt: skip
    node.start({**train(node, steps="5", key="data"), "address": "job.data"})
    node.ended("data")
    release = f"until [ -e {node.base}/go ]; do sleep 0.1; done"
    spec = {**train(node, steps="10 20", group_size=2), "store": store}
    spec["job"]["runtime"]["start_commands"].append(release)
    node.start(spec)
    follows = [{"key": "data", "address": "job.data"}, {"key": "train-1", "address": "job.train"}]
    node.start({**evaluate(node), "follows": follows, "store": store})
    complete = node.base / "store" / PREFIX.format(key="train-1") / ".complete"
    wait_for((complete / "rank-0" / "checkpoint-20.json").exists)
    time.sleep(2)
    before = node.status("eval-1")["evaluations"]
    for step in saved_by_both:
        part = json.loads((complete / "rank-0" / f"checkpoint-{step}.json").read_text())
        (complete / "rank-1").mkdir()
        (complete / "rank-1" / f"checkpoint-{step}.json").write_text(
            json.dumps({**part, "rank": 1})
        )
    (node.base / "go").touch()

    assert not before
    expected = [(step, "completed") for step in saved_by_both or (10, 20)]
    assert [row[:2] for row in rows(node.ended("eval-1"))] == expected
