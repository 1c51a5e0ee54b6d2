"""Jobs on several nodes of this machine, from the manifest to the end of all ranks."""

from __future__ import annotations

import jsonschema

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
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
clusters: {local: {provider: local, nodes: 2}}
jobs:
  sft:
    compute: {node_count: 2}
    runtime: {start_commands: ["test $BT_NODE_RANK != 1 || exit 7", "sleep 600"]}
"""
SHARED = """\
clusters: {local: {provider: local, nodes: 2, gpus: GPUS}}
jobs: {sft: {compute: COMPUTE, runtime: {start_commands: ["true"]}}}
"""
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


def test_two_ranks_from_beginning_to_end(fresh: ProjectHarness) -> None:
    """Logs, metrics, checkpoints and code of both are available, and nothing is left to plan."""
    store = fresh.directory.parent / "store"
    store.mkdir()
    text = MANIFEST.replace("STORE", str(store))
    fresh.write({"trainctl.yaml": text, "src/note": "note", "weights/model.bin": b"x" * 1000})
    nodes = ["local/local-0", "local/local-1"]
    rows = fresh.json("plan")["deliveries"]
    assert [(row["rank"], row["node"]) for row in rows] == [*enumerate(nodes)]

    fresh.run("apply", "--auto-approve", "--wait")

    lines = fresh.run("logs", "sft").stdout.splitlines()
    assert sorted(lines) == [f"[rank {n}] rank {n} of 2 at 127.0.0.1, lo" for n in range(2)]
    assert fresh.run("logs", "sft", "--rank", "1").stdout == "rank 1 of 2 at 127.0.0.1, lo\n"
    status = fresh.json("status", "sft")
    jsonschema.validate(status, schema("status"))
    assert [(rank["node"], rank["exit_code"]) for rank in status["ranks"]] == [
        (node, 0) for node in nodes
    ]
    kept = fresh.json("checkpoints", "list", "sft")["checkpoints"]
    assert [(row["rank"], row["name"], row["complete"]) for row in kept] == [
        (rank, "step-1", True) for rank in range(2)
    ]
    samples = fresh.json("metrics", "sft", "--rank", "1")["samples"]
    assert {sample["rank"] for sample in samples} == {1}
    fresh.run("metrics", "sft", "--rank", "2", code=64)
    fresh.run("download", "sft", "--output-dir", "there")
    assert [path.read_text() for path in (fresh.directory / "there").glob("*/note")] == ["note"]
    assert fresh.actions() == {}
    fresh.run("destroy", "--auto-approve")
    assert list(fresh.nodes.iterdir()) == []


def test_the_rank_that_failed_is_named(fresh: ProjectHarness) -> None:
    fresh.write({"trainctl.yaml": FAILING})
    done = fresh.run("apply", "--auto-approve", "--wait", code=12)
    ranks = fresh.json("status", "sft")["ranks"]

    assert "rank 1: start command 1 of 2 exited with 7" in done.stdout + done.stderr
    assert [(rank["status"], rank["error"]) for rank in ranks] == [
        ("TRAINING_JOB_STOPPED", "stopped because rank 1 failed"),
        ("TRAINING_JOB_FAILED", None),
    ]


def test_a_gang_that_could_never_start_is_an_error_of_the_plan(fresh: ProjectHarness) -> None:
    """GPUs that nodes of one machine share are not counted twice, named or as all that there are."""

    def errors(gpus: int, compute: str) -> str:
        text = SHARED.replace("GPUS", str(gpus)).replace("COMPUTE", compute)
        fresh.write({"trainctl.yaml": text})
        rows = fresh.json("plan", code=None)["diagnostics"]
        return "".join(row["summary"] for row in rows if row["severity"] == "error")

    shared = "cluster.local has room for 1, where nodes share a machine"
    assert errors(0, "{node_count: 4}").endswith("needs 4 nodes, but cluster.local has 2 nodes")
    for gpus in (1, 2):
        assert errors(gpus, "{node_count: 2}").endswith(shared)
    assert errors(1, '{node_count: 2, accelerator: "H100:1"}').endswith(shared)
    assert errors(2, '{node_count: 2, accelerator: "H100:1"}') == ""


def test_a_gang_starts_once_all_ranks_of_the_gang_it_follows_completed(
    fresh: ProjectHarness,
) -> None:
    gate = fresh.directory.parent / "gate"
    fresh.write({"trainctl.yaml": FOLLOWING.replace("GATE", str(gate))})
    first = fresh.run("apply", "--auto-approve", code=12)
    fresh.run("reconcile", "--once")
    started = {job["address"] for job in fresh.json("status")["jobs"] if job["run"]}
    gate.touch()
    wait_for(lambda: fresh.json("status", "first")["status"] == "TRAINING_JOB_COMPLETED")
    fresh.run("reconcile", "--once")
    wait_for(lambda: fresh.json("status", "then")["status"] == "TRAINING_JOB_COMPLETED")

    waits = "job.then: waits: run 1 of job.first is live on local/local-0, local/local-1"
    assert waits in first.stdout
    assert started == {"job.first"}
    lines = sorted(fresh.run("logs", "then").stdout.splitlines())
    assert lines == ["[rank 0] then 0", "[rank 1] then 1"]
