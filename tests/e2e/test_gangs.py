"""Jobs on several nodes of this machine, from the manifest to the end of all ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jsonschema
import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.pytorch import GLOO_TRAIN, pytorch
from tests.support.tiers import one_day_in
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 2}}
checkpoints: {url: "file://STORE"}
jobs:
  sft:
    code: ./src
    compute: {node_count: 2}
    weights: ["file:./weights"]
    runtime:
      start_commands:
        - echo rank $BT_NODE_RANK of $BT_GROUP_SIZE at $BT_LEADER_ADDR, $NCCL_SOCKET_IFNAME
        - mkdir $BT_CHECKPOINT_DIR/step-1 && cat weights/*/* note > $BT_CHECKPOINT_DIR/step-1/model
      environment_variables: {NCCL_SOCKET_IFNAME: lo}
      checkpointing_config: {enabled: true}
"""
FAILING = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 3}}
jobs:
  sft:
    compute: {node_count: 3}
    runtime: {start_commands: ["test $BT_NODE_RANK != 2 || exit 7", "sleep 600"]}
"""
SINGLE = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 2}}
jobs:
  a: {runtime: {start_commands: [sleep 600]}}
  b: {runtime: {start_commands: [sleep 600]}}
"""


def test_two_ranks_from_beginning_to_end(fresh: ProjectHarness) -> None:
    """Both know their place, share the leader's address and the job's own variables; logs, metrics, checkpoints and code of all ranks can be
    had, and nothing is left to plan.
    """
    store = fresh.directory.parent / "store"
    store.mkdir()
    fresh.write(
        {
            "trainctl.yaml": MANIFEST.replace("STORE", str(store)),
            "src/note": "note",
            "weights/model.bin": b"x" * 1000,
        }
    )
    rows = fresh.json("plan")["deliveries"]
    assert [(row["rank"], row["node"]) for row in rows] == [
        (0, "local/local-0"),
        (1, "local/local-1"),
    ]

    fresh.run("apply", "--auto-approve", "--wait")

    said = fresh.run("logs", "sft").stdout.splitlines()
    assert sorted(said) == [f"[rank {n}] rank {n} of 2 at 127.0.0.1, lo" for n in range(2)]
    assert fresh.run("logs", "sft", "--rank", "1").stdout == "rank 1 of 2 at 127.0.0.1, lo\n"
    status = fresh.json("status", "sft")
    jsonschema.validate(status, schema("status"))
    assert [(one["node"], one["exit_code"]) for one in status["ranks"]] == [
        ("local/local-0", 0),
        ("local/local-1", 0),
    ]
    kept = fresh.json("checkpoints", "list", "sft")["checkpoints"]
    assert [(one["rank"], one["name"], one["complete"]) for one in kept] == [
        (0, "step-1", True),
        (1, "step-1", True),
    ]
    samples = fresh.json("metrics", "sft", "--rank", "1")["samples"]
    assert {one["rank"] for one in samples} == {1}
    fresh.run("metrics", "sft", "--rank", "2", code=64)
    fresh.run("download", "sft", "--output-dir", "there")
    assert [path.read_text() for path in (fresh.directory / "there").glob("*/note")] == ["note"]
    assert fresh.actions() == {}
    fresh.run("destroy", "--auto-approve")
    assert list(fresh.nodes.iterdir()) == []


@one_day_in(5)
def test_the_rank_that_failed_is_named(fresh: ProjectHarness) -> None:
    """The run has its error and exit code; the others were ended because of it."""
    fresh.write({"trainctl.yaml": FAILING})
    done = fresh.run("apply", "--auto-approve", "--wait", code=12)
    assert "rank 2: start command 1 of 2 exited with 7" in done.stdout + done.stderr
    status = fresh.json("status", "sft")
    assert [one["status"] for one in status["ranks"]] == [
        *["TRAINING_JOB_STOPPED"] * 2,
        "TRAINING_JOB_FAILED",
    ]
    assert [one["error"] for one in status["ranks"]] == [
        *["stopped because rank 2 failed"] * 2,
        None,
    ]


@one_day_in(7)
def test_a_stop_ends_all_ranks(fresh: ProjectHarness) -> None:
    """One command; all ranks are STOPPED."""
    fresh.write({"trainctl.yaml": FAILING.replace("!= 2", "!= 9")})
    fresh.run("apply", "--auto-approve")
    assert fresh.json("status", "sft")["status"] == "TRAINING_JOB_RUNNING"
    fresh.run("stop", "sft")
    status = fresh.json("status", "sft")
    assert {one["status"] for one in status["ranks"]} == {"TRAINING_JOB_STOPPED"}


def test_more_nodes_than_there_are_is_an_error_of_the_plan(fresh: ProjectHarness) -> None:
    """Nothing is begun."""
    fresh.write({"trainctl.yaml": FAILING.replace("node_count: 3", "node_count: 4")})
    done = fresh.run("plan", code=1)
    assert "needs 4 nodes, but cluster.local has 3 nodes" in done.stdout + done.stderr


SHARED = """\
clusters: {local: {provider: local, nodes: 2, gpus: GPUS}}
jobs: {sft: {compute: COMPUTE, runtime: {start_commands: ["true"]}}}
"""


@one_day_in(7)
@pytest.mark.parametrize("compute", ['{node_count: 2, accelerator: "H100:1"}', "{node_count: 2}"])
def test_gpus_that_all_nodes_share_are_not_counted_twice(
    fresh: ProjectHarness, compute: str
) -> None:
    """Two ranks that each want the only GPU of a machine, named or as all that there is, would wait for ever: the plan says so. With enough they may."""

    def problems(gpus: int) -> list[str]:
        text = SHARED.replace("GPUS", str(gpus)).replace("COMPUTE", compute)
        fresh.write({"trainctl.yaml": text})
        found = fresh.json("plan", code=None)["diagnostics"]
        return [one["summary"] for one in found if one["severity"] == "error"]

    (problem,) = problems(1)
    assert problem.endswith("cluster.local has room for 1, where nodes share a machine")
    assert problems(2) == ([] if "accelerator" in compute else [problem])


FOLLOWING = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 2}}
jobs:
  first:
    compute: {node_count: 2}
    runtime: {start_commands: ["while ! test -e GATE; do sleep 0.1; done"]}
  then:
    compute: {node_count: 2}
    depends_on: [job.first]
    runtime: {start_commands: ["echo then $BT_NODE_RANK"]}
"""


@one_day_in(7)
def test_a_gang_that_follows_a_gang(fresh: ProjectHarness) -> None:
    """It is left alone while any rank of the first goes on, and started by the next look once all have completed."""
    gate = fresh.directory.parent / "gate"
    fresh.write({"trainctl.yaml": FOLLOWING.replace("GATE", str(gate))})
    first = fresh.run("apply", "--auto-approve", code=12)
    fresh.run("reconcile", "--once")
    started = {one["address"] for one in fresh.json("status")["jobs"] if one["run"]}
    gate.touch()
    wait_for(lambda: fresh.json("status", "first")["status"] == "TRAINING_JOB_COMPLETED")
    fresh.run("reconcile", "--once")
    wait_for(lambda: fresh.json("status", "then")["status"] == "TRAINING_JOB_COMPLETED")

    assert (
        "job.then: waits: run 1 of job.first is live on local/local-0, local/local-1"
        in first.stdout
    )
    assert started == {"job.first"}
    assert sorted(fresh.run("logs", "then").stdout.splitlines()) == [
        "[rank 0] then 0",
        "[rank 1] then 1",
    ]


@one_day_in(7)
def test_jobs_of_one_node_spread_over_the_cluster(fresh: ProjectHarness) -> None:
    """Two jobs that are placed at the same time get a node each, as the plan said."""
    fresh.write({"trainctl.yaml": SINGLE})
    fresh.run("apply", "--auto-approve")
    jobs = fresh.json("status")["jobs"]
    assert {one["ranks"][0]["node"] for one in jobs} == {"local/local-0", "local/local-1"}
    fresh.run("stop", "--all", "--grace", "0s")


TORCH = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 2}}
jobs:
  JOB:
    code: ./src
    compute: {node_count: 2}
    retry: {max_attempts: 2, delay: 0s}
    runtime:
      venv: VENV
      start_commands: [python train.py]
      environment_variables: {WAITS: "WAITING", GLOO_SOCKET_IFNAME: lo}
      checkpointing_config: {enabled: true}
"""


def _trainer_of(node: Path) -> int | None:
    """The process that trains on a node."""
    mark = f"TRAINCTL_RUN_DIRECTORY={node}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if words[1:2] == [b"train.py"] and mark in (path / "environ").read_bytes():
                return int(path.name)
        except OSError:
            continue
    return None


def _final(work: ProjectHarness, job: str) -> set[str]:
    """The last line of every rank."""
    return {work.run("logs", job, "--rank", str(rank)).stdout.splitlines()[-1] for rank in range(2)}


@one_day_in(14)
def test_a_killed_rank_of_two_ends_where_one_that_was_never_interrupted_does(
    fresh: ProjectHarness,
) -> None:
    """PyTorch over gloo: one rank is killed with SIGKILL, all are tried again from their newest common checkpoint: the same loss to the last bit."""
    text = TORCH.replace("VENV", str(pytorch()))
    fresh.write({"src/train.py": GLOO_TRAIN})
    fresh.write({"trainctl.yaml": text.replace("JOB", "plain").replace("WAITING", "no")})
    fresh.run("apply", "--auto-approve", "--wait", seconds=300)
    plain = _final(fresh, "plain")

    fresh.write({"trainctl.yaml": text.replace("JOB", "killed").replace("WAITING", "yes")})
    fresh.run("apply", "--auto-approve", seconds=300)
    wait_for(lambda: "waiting" in fresh.run("logs", "killed", "--rank", "1").stdout, seconds=120)
    os.kill(wait_for(lambda: _trainer_of(fresh.nodes / "local-1")), signal.SIGKILL)
    ended = wait_for(
        lambda: (now := fresh.json("status", "killed"))["ended_at"] and now, seconds=180
    )

    assert (ended["status"], ended["retries"]) == ("TRAINING_JOB_COMPLETED", 1)
    assert "resumed at 30" in fresh.run("logs", "killed", "--rank", "0").stdout
    assert len(plain) == 1
    assert _final(fresh, "killed") == plain
