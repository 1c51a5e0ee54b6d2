"""Jobs of a Slurm cluster, against a real one of four nodes with two GPUs each."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.containers import BUSYBOX, ContainerRegistry, EngineHarness
from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.machines.slurm import SlurmCluster
from tests.support.node_program.nodes import wait_for
from tests.support.projects.program import ROOT
from tests.support.projects.project import ProjectHarness

MANIFEST = """
project: {name: team}
clusters:
  hpc: {provider: slurm, shared_dir: %s, partition: gpu}
jobs:
  train:
    code: .
    compute: {accelerator: "H100:2"%s}
    runtime: {start_commands: [%s]%s}
"""


@pytest.fixture
def project(fresh: ProjectHarness, slurm: SlurmCluster) -> Iterator[ProjectHarness]:
    fresh.variables.update(slurm.variables)
    yield fresh
    slurm.cancel_all()


def write(
    project: ProjectHarness, slurm: SlurmCluster, command: str, compute: str = "", runtime: str = ""
) -> Path:
    shared = slurm.shared_dir / project.directory.parent.name
    project.write({"trainctl.yaml": MANIFEST % (shared, compute, command, runtime)})
    return shared


def test_a_job_runs_where_slurm_places_it(project: ProjectHarness, slurm: SlurmCluster) -> None:
    shared = write(
        project, slurm, '"echo trained with $CUDA_VISIBLE_DEVICES of $BT_NUM_GPUS in $SLURM_JOB_ID"'
    )
    done = project.run("apply", "--auto-approve", "--wait")
    assert "3 added" in done.stdout
    job = max(slurm.jobs())
    assert project.run("logs", "train").stdout == f"trained with 0,1 of 2 in {job}\n"
    project.run("destroy", "--auto-approve")
    assert [*shared.glob("runs/*")] == []


def test_points_of_a_rank_outlive_the_shared_directory(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    """Only the second rank reports."""
    report = (
        """[ $BT_NODE_RANK = 0 ] || echo '{\\"step\\": 7, \\"loss\\": 0.5}' >>$TRAINCTL_PROGRESS"""
    )
    shared = write(project, slurm, f'"{report}"', ", node_count: 2")
    project.run("apply", "--auto-approve", "--wait")
    shutil.rmtree(shared)
    (run,) = project.json("results", "train")["runs"]
    assert (run["points"]["loss"]["values"], run["points"]["loss"]["steps"]) == ([0.5], [7])


GANG = """
import os, pathlib, socket
rank, address = int(os.environ["BT_NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert rank == int(os.environ["SLURM_PROCID"]) and os.environ["BT_GROUP_SIZE"] == os.environ["SLURM_NNODES"]
if rank:
    while True:
        try:
            line = socket.create_connection(address)
            break
        except OSError:
            pass
    line.sendall(b"%d" % rank)
else:
    with socket.create_server(address) as server:
        ranks = {server.accept()[0].recv(1) for _ in range(int(os.environ["BT_GROUP_SIZE"]) - 1)}
    print("met", sorted(map(int, ranks)), flush=True)
pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1").mkdir(parents=True)
pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1", "weights").write_text(str(rank))
"""


def test_ranks_on_three_nodes_meet(project: ProjectHarness, slurm: SlurmCluster) -> None:
    runtime = ", checkpointing_config: {enabled: true}"
    write(project, slurm, '"python3 gang.py"', ", node_count: 3", runtime)
    (project.directory / "gang.py").write_text(GANG)
    project.run("apply", "--auto-approve", "--wait")
    assert project.run("logs", "train", "--rank", "0").stdout == "met [1, 2]\n"
    status = project.json("status", "job.train")
    assert [rank["status"] for rank in status["ranks"]] == ["TRAINING_JOB_COMPLETED"] * 3
    checkpoints = project.json("checkpoints", "list", "job.train")["checkpoints"]
    assert sorted(row["rank"] for row in checkpoints if row["complete"]) == [0, 1, 2]


def test_a_failed_rank_ends_the_others(project: ProjectHarness, slurm: SlurmCluster) -> None:
    command = '"if [ $BT_NODE_RANK = 1 ]; then exit 3; fi; sleep 300"'
    write(project, slurm, command, ", node_count: 2")
    project.run("apply", "--auto-approve", "--wait", code=None)
    status = project.json("status", "job.train")
    assert status["status"] == "TRAINING_JOB_FAILED"
    assert [rank["exit_code"] for rank in status["ranks"]] == [-15, 3]
    assert [rank["node"] for rank in status["ranks"]] == ["hpc/n1", "hpc/n2"]


def test_a_pending_run_says_why_and_can_be_stopped(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    other = slurm.sbatch("sleep 300", "--nodes=4", "--gres=gpu:2")
    slurm.await_state(other, "RUNNING")
    write(project, slurm, '"sleep 300"')
    assert "start unknown, behind jobs without a time limit" in project.run("plan").stdout
    project.run("apply", "--auto-approve")
    reasons = ("waits for free nodes", "waits for jobs with a higher priority")
    wait_for(lambda: until(project, "TRAINING_JOB_PENDING")["waiting"] in reasons)
    project.run("stop", "train")
    assert project.json("status", "job.train")["status"] == "TRAINING_JOB_STOPPED"
    assert slurm.state(max(slurm.jobs())) == "CANCELLED"
    assert slurm.state(other) == "RUNNING"


@pytest.mark.long
def test_a_run_has_its_max_duration(project: ProjectHarness, slurm: SlurmCluster) -> None:
    """Slurm's signal would come up to 30 s before its time, a minute before the time limit."""
    write(project, slurm, '"sleep 45"')
    with (project.directory / "trainctl.yaml").open("a") as manifest:
        manifest.write("    max_duration: 1m\n")
    project.run("apply", "--auto-approve", "--wait")
    job = str(max(slurm.jobs()))
    assert slurm("squeue", "-h", "-t", "all", "-j", job, "-O", "TimeLimit") == "11:00"


SLOW = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(6), print("saved"), sys.exit()))
print("ready", flush=True)
time.sleep(300)
"""


def test_a_run_that_is_stopped_may_save(project: ProjectHarness, slurm: SlurmCluster) -> None:
    """For longer than Slurm's KillWait. One process, as Slurm signals all in any order."""
    (project.directory / "saves.py").write_text(SLOW)
    write(project, slurm, '"exec python3 saves.py"')
    project.run("apply", "--auto-approve")
    wait_for(lambda: project.run("logs", "train", code=None).stdout == "ready\n")
    project.run("stop", "train")
    assert project.json("status", "job.train")["status"] == "TRAINING_JOB_STOPPED"
    assert project.run("logs", "train").stdout == "ready\nsaved\n"


def until(project: ProjectHarness, expected: str) -> Any:
    seen: Any = {}

    def reached() -> bool:
        seen.update(project.json("status", "job.train"))
        return bool(seen["status"] == expected)

    wait_for(reached, 120)
    return seen


def test_a_run_whose_job_is_cancelled_is_stopped(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    write(project, slurm, '"sleep 300"')
    project.run("apply", "--auto-approve")
    until(project, "TRAINING_JOB_RUNNING")
    slurm("scancel", str(max(slurm.jobs())))
    status = until(project, "TRAINING_JOB_STOPPED")
    assert status["error"].startswith("its job was cancelled")


@pytest.mark.long
@pytest.mark.parametrize("requeued", [True, False])
def test_a_node_of_a_run_is_killed(
    project: ProjectHarness, slurm: SlurmCluster, requeued: bool
) -> None:
    """Slurm starts the run again on other nodes, or it is lost."""
    command = '"if [ $BT_RETRY_COUNT = 0 ]; then sleep 300; fi; echo done"'
    write(project, slurm, command, ", node_count: 2")
    manifest = project.directory / "trainctl.yaml"
    setting = f"partition: gpu, requeue: {str(requeued).lower()}"
    manifest.write_text(manifest.read_text().replace("partition: gpu", setting))
    project.run("apply", "--auto-approve")
    until(project, "TRAINING_JOB_RUNNING")
    slurm.kill_node("n2")
    try:
        status = until(project, "TRAINING_JOB_COMPLETED" if requeued else "TRAINING_JOB_LOST")
    finally:
        slurm.restart_node("n2")
    nodes = [rank["node"] for rank in status["ranks"]]
    if requeued:
        assert "hpc/n2" not in nodes
        assert status["number"] == 1
    else:
        assert status["error"] == "a node of its job failed"


@pytest.mark.long
def test_commands_wait_for_a_controller_that_restarts(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    """Status and stop report it, and nothing ends."""
    back, begun = slurm.shared_dir / "back", slurm.shared_dir / "begun"
    write(project, slurm, f'"touch {begun}; while [ ! -e {back} ]; do sleep 0.1; done"')
    with project.start("apply", "--auto-approve", "--wait") as waiting:
        while not begun.exists():  # a pending job would wait for Slurm's next look at its nodes
            assert waiting.poll() is None
            time.sleep(0.1)
        slurm.stop_controller()
        try:
            assert "Slurm's controller doesn't respond" in project.run("status", "train").stdout
            failed = project.run("stop", "train", code=None)
        finally:
            slurm.start_controller()
        back.touch()
        out, err = waiting.communicate(timeout=120)
    assert failed.returncode != 0
    assert "Slurm's controller doesn't respond" in failed.stderr
    assert waiting.returncode == 0, out + err


SWEEP = """
project: {name: team}
clusters:
  hpc: {provider: slurm, shared_dir: %s}
jobs:
  train:
    code: .
    compute: {accelerator: "H100:1"}
    matrix: {seed: [1, 2, 3, 4, 5, 6]}
    max_parallel: 1
    runtime: {start_commands: ["until [ -e %s ]; do sleep 0.1; done"]}
"""


@pytest.mark.long
def test_limit_and_priority_of_a_sweep_change(project: ProjectHarness, slurm: SlurmCluster) -> None:
    """Without another submission; a run that started keeps what it has."""
    shared = write(project, slurm, "")
    manifest = SWEEP % (shared, shared / "go")
    project.write({"trainctl.yaml": manifest})
    project.run("apply", "--auto-approve")
    slurm.await_that(lambda: running(slurm) == 1, "the first does not run")
    before = set(slurm.jobs())
    changed = manifest.replace("max_parallel: 1", "max_parallel: 3\n    priority: -7")
    project.write({"trainctl.yaml": changed})
    assert "6 to change" in project.run("apply", "--auto-approve").stdout
    slurm.await_that(lambda: running(slurm) >= 3, "no others run")
    assert set(slurm.jobs()) == before
    assert running(slurm) <= 4
    nice = slurm("squeue", "-h", "-t", "pending", "-O", "Nice").split()
    assert nice == ["7"] * len(nice)
    (shared / "go").touch()
    slurm.await_that(lambda: not slurm("squeue", "-h"), "the sweep does not end")
    assert {job["status"] for job in project.json("status")["jobs"]} == {"TRAINING_JOB_COMPLETED"}


def test_a_plan_asks_once_per_shape_and_warns_of_one_processor(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    """A sweep has one shape; each forecast uses up a job id."""
    project.write({"trainctl.yaml": SWEEP % (slurm.shared_dir / "asked", "go")})
    before = slurm.sbatch("true", "--gres=gpu:1")
    slurm.await_state(before, "COMPLETED")  # a restarted controller may not know the GPUs yet
    plan = project.run("plan")
    assert "cluster.hpc would give it 1 processor for 1 GPU per node" in plan.stdout + plan.stderr
    assert slurm.sbatch("true") == before + 2


def running(slurm: SlurmCluster) -> int:
    return slurm("squeue", "-h", "-o", "%T").split().count("RUNNING")


def test_a_machine_that_lacks_a_gpu_fails_the_run(
    project: ProjectHarness, slurm: SlurmCluster, tmp_path: Path
) -> None:
    gpus = FakeNvidiaGpus.make(tmp_path / "tools", 1)
    project.variables["PATH"] = f"{gpus.tools}:{project.variables['PATH']}"
    write(project, slurm, '"echo started"', ", node_count: 2")
    project.run("apply", "--auto-approve", "--wait", code=None)
    status = project.json("status", "job.train")
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert re.search(
        r"node n[12]: 1 of 2 GPUs that the run needs. Check nvidia-smi", status["error"]
    )
    assert "started" not in project.run("logs", "train", code=None).stdout


WEIGHTS = """
project: {name: team}
clusters:
  hpc: {provider: slurm, shared_dir: %s%s}
weights:
  base: {source: "file:./model"}
jobs:
  train:
    code: .
    weights: [base]
    compute: {node_count: 2}
    runtime: {start_commands: ["head -n 1 weights/model/model.safetensors; stat -c %%A weights/model"]}
"""
LONG = " " * 20_000_000
"""More than a chunk."""


def test_weights_are_copied_to_the_disk_of_each_node(
    project: ProjectHarness, slurm: SlurmCluster, tmp_path: Path
) -> None:
    shared = slurm.shared_dir / project.directory.parent.name
    manifest = WEIGHTS % (shared, f", node_cache: {tmp_path}/$SLURMD_NODENAME")
    project.write({"trainctl.yaml": manifest, "model/model.safetensors": "weights\n" + LONG})
    project.run("apply", "--auto-approve", "--wait")
    for rank in ("0", "1"):
        assert project.run("logs", "train", "--rank", rank).stdout.startswith("weights\ndr-xr")
    assert (tmp_path / "n1" / "trees").is_dir()
    copied = "".join(log.read_text() for log in shared.glob("runs/*/batch.log"))
    matches = [*map(int, re.findall(r"weights.base: copied (\d+) bytes", copied))]
    assert (len(matches), sum(matches)) == (2, 8 + len(LONG))


@pytest.mark.long
def test_the_example(project: ProjectHarness, slurm: SlurmCluster) -> None:
    shutil.copytree(ROOT / "examples" / "slurm", project.directory, dirs_exist_ok=True)
    names = ("--var", "login=local", "--var", f"shared_dir={slurm.shared_dir}/example")
    project.run("apply", "--auto-approve", "--wait", *names)
    assert project.run("logs", "sum", "--rank", "0").stdout == "sum of 1 numbers: 10\n"
    project.run("destroy", "--auto-approve", *names)


def test_a_run_whose_shell_is_replaced_fails(
    project: ProjectHarness, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """So does its job: Slurm starts no job after it."""
    (tmp_path / ".bash_profile").write_text("exec true\n")
    project.variables["HOME"] = str(tmp_path)
    write(project, slurm, '"echo started"')
    project.run("apply", "--auto-approve", "--wait", code=None)
    assert "ended or replaced it" in until(project, "TRAINING_JOB_DEPLOY_FAILED")["error"]
    assert slurm.state(max(slurm.jobs())) == "FAILED"


IN_CONTAINER = """
project: {name: team}
clusters: {hpc: {provider: slurm, shared_dir: %s}}
jobs:
  train:
    image: {base_image: "%s"}
    runtime: {engine: podman, start_commands: ["echo in $BT_WORKING_DIR"]}
"""


def test_a_job_runs_in_a_container(
    project: ProjectHarness,
    slurm: SlurmCluster,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """The image is pulled before the job is submitted, by the engine of the login host."""
    own_registry.push(own_podman, BUSYBOX, "e2e/slurm:1")
    shim = tmp_path / "bin" / "podman"  # jobs don't inherit the variables of its private storage
    shim.parent.mkdir()
    settings = " ".join(f"{name}={value}" for name, value in own_podman.variables.items())
    shim.write_text(f'#!/bin/sh\nexec env {settings} /usr/bin/podman "$@"\n')
    shim.chmod(0o755)
    project.variables["PATH"] = f"{shim.parent}:{project.variables['PATH']}"
    image = f"{own_registry.address}/e2e/slurm:1"
    project.write({"trainctl.yaml": IN_CONTAINER % (slurm.shared_dir / "container", image)})
    project.run("apply", "--auto-approve", "--wait")
    assert project.run("logs", "train").stdout == "in /b10/workspace\n"
    project.run("destroy", "--auto-approve")


SAVES = """
import os, pathlib, signal, sys, time
checkpoint = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-7")

def save(*_):
    checkpoint.mkdir()
    (checkpoint / "state").write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("resumed" if checkpoint.exists() else "started", flush=True)
if not checkpoint.exists():
    time.sleep(300)
"""


def test_preempted_ranks_save_before_they_go_on(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    """As the same run. Their checkpoints are uploaded within the grace period of the partition."""
    runtime = ", checkpointing_config: {enabled: true}"
    write(project, slurm, '"python3 saves.py"', ", node_count: 2", runtime)
    store = slurm.shared_dir / "store"
    with (project.directory / "trainctl.yaml").open("a") as manifest:
        manifest.write(f"checkpoints: {{url: 'file://{store}'}}\n")
    (project.directory / "saves.py").write_text(SAVES)
    project.run("apply", "--auto-approve")
    wait_for(lambda: project.run("logs", "train", code=None).stdout.count("started") == 2)
    slurm("scontrol", "update", "partitionname=gpu", "gracetime=8")
    try:
        urgent = slurm.sbatch("sleep 1", "--partition=urgent", "--nodes=4", "--gres=gpu:2")
        slurm.await_state(urgent, "RUNNING", "COMPLETED", seconds=60)
    finally:
        slurm("scontrol", "update", "partitionname=gpu", "gracetime=0")
    assert len([*store.glob("team/train/*/rank-*/checkpoint-7/state")]) == 2
    assert until(project, "TRAINING_JOB_COMPLETED")["number"] == 1
    assert project.run("logs", "train").stdout.count("resumed") == 2


EVALUATION = """
  eval:
    code: .
    compute: {accelerator: none}
    for_each_checkpoint: {job: train}
    runtime: {start_commands: ["cat $BT_LOAD_CHECKPOINT_DIR/train/rank-0/*/weights"]}
"""


def test_each_checkpoint_is_evaluated_after_the_job(
    project: ProjectHarness, slurm: SlurmCluster
) -> None:
    """The job for each checkpoint depends on the training: Slurm starts it, nobody watches."""
    runtime = ", checkpointing_config: {enabled: true}"
    save = "for step in 1 2 3; do mkdir $BT_CHECKPOINT_DIR/checkpoint-$step; echo $step >$BT_CHECKPOINT_DIR/checkpoint-$step/weights; done; sleep 1"  # fmt: skip
    write(project, slurm, f'"{save}"', runtime=runtime)
    manifest = project.directory / "trainctl.yaml"
    manifest.write_text(manifest.read_text().replace("H100:2", "H100:1") + EVALUATION)
    project.run("apply", "--auto-approve")
    waiting = project.json("status", "eval")
    wait_for(lambda: not project.json("status", "eval")["status"].endswith(("PENDING", "RUNNING", "DEPLOYING")))  # fmt: skip
    status = project.json("status", "eval")

    assert waiting["status"] == "TRAINING_JOB_PENDING"
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert [(row["step"], row["status"]) for row in status["evaluations"]] == [(step, "completed") for step in (1, 2, 3)]  # fmt: skip
    assert [line for line in project.run("logs", "eval").stdout.splitlines() if "==" not in line] == ["1", "2", "3"]  # fmt: skip
