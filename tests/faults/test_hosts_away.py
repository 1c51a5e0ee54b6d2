"""Hosts whose power, link or processes stop: unreachable, never gone, and as they were when they are back.

What the other hosts know is shown, with a warning that names the unreachable host and what is missing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

INCOMPLETE = 1
MANIFEST = """\
project: {name: demo}
MIRROR
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
"""
LONG_JOB = """\
jobs:
  sft:
    code: ./src
    compute: {accelerator: "H100:1"}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime: {start_commands: ["cat /app/models/tiny/word", "echo ready", "for i in $(seq 0 7231); do echo tick $i; sleep 1; done"]}
"""
GANG = """\
jobs:
  all:
    code: ./src
    compute: {node_count: COUNT}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime:
      start_commands: ["mkdir $BT_CHECKPOINT_DIR/step-1", "echo $BT_NODE_RANK >$BT_CHECKPOINT_DIR/step-1/model", "echo done"]
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    with host_lab(tmp_path_factory.mktemp("lab"), 3) as lab:
        yield lab


def write(project: ProjectHarness, lab: HostLab, count: int, jobs: str, mirror: str = "") -> None:
    """A manifest of so many hosts."""
    hosts = json.dumps([host.settings for host in lab.hosts[:count]])
    text = MANIFEST.replace("MIRROR", mirror).replace("HOSTS", hosts)
    text += jobs.replace("COUNT", str(count))
    project.write({"trainctl.yaml": text, "src/nothing": "", "weights/word": "hello\n"})


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of two hosts with a job that runs on the first."""
    with client_project(lab, tmp_path) as project:
        write(project, lab, 2, LONG_JOB)
        project.run("apply", "--auto-approve")
        wait_for(lambda: "ready" in project.run("logs", "job.sft").stdout, 60)
        yield project
        project.run("destroy", "--auto-approve", "--stop-running")


@pytest.fixture(scope="module")
def gang(lab: HostLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """A project whose job has completed on all three."""
    with client_project(lab, tmp_path_factory.mktemp("demo")) as project:
        write(project, lab, 3, GANG, f'mirror: {{url: "file://{project.mirror}"}}')
        project.run("apply", "--auto-approve", "--wait")
        yield project
        project.run("destroy", "--auto-approve", "--delete-checkpoints")


def presences(demo: ProjectHarness) -> dict[str, str]:
    return {node["name"]: node["status"] for node in demo.json("nodes")["nodes"]}


@pytest.mark.parametrize("fault", ["cut", pytest.param("freeze", marks=pytest.mark.long)])
def test_the_run_of_an_unreachable_host_goes_on(
    demo: ProjectHarness, lab: HostLab, fault: str
) -> None:
    """Nothing is planned because of it."""
    with lab.hosts[0].away(fault):
        during = presences(demo)
        planned = demo.run("plan", "--detailed-exitcode")
        status = demo.json("status", "job.sft")

    warnings = [
        line.rpartition("warning: ")[2]
        for line in planned.stderr.splitlines()
        if "warning: " in line
    ]
    assert during == {"gpu-0": "unreachable", "gpu-1": "present"}
    assert [warning.split()[0] for warning in warnings] == ["the", "cluster.lab:", "job.sft"]
    assert "the mirror is unreachable" in warnings[0]
    assert status["status"] == "TRAINING_JOB_RUNNING"
    assert wait_for(lambda: presences(demo)["gpu-0"] == "present", 120)
    assert demo.json("status", "job.sft")["status"] == "TRAINING_JOB_RUNNING"


def test_a_followed_log_continues_after_a_cut_link(demo: ProjectHarness, lab: HostLab) -> None:
    """The lost connection is reported; no line is lost or repeated."""
    following = demo.start("logs", "job.sft", "--follow")
    assert following.stdout is not None
    assert following.stderr is not None
    lines = until(following.stdout, "tick 0")
    lab.hosts[0].link(up=False)
    try:
        until(following.stderr, "connection lost; retrying")
    finally:
        lab.hosts[0].link(up=True)
    lines += until(following.stdout, "tick 15")
    following.kill()
    following.communicate()

    ticks = [line for line in lines if line.startswith("tick")]
    assert ticks == [f"tick {number}" for number in range(len(ticks))]


def until(stream: IO[str], words: str) -> list[str]:
    """The lines up to the one with these words."""
    lines: list[str] = []
    while words not in "".join(lines[-1:]):
        line = stream.readline()
        assert line, lines
        lines.append(line.rstrip("\n"))
    return lines


def test_a_run_is_lost_once_its_host_booted_without_it(demo: ProjectHarness, lab: HostLab) -> None:
    """The host is the same node: its disk and its key are the same."""
    lab.hosts[0].power_off()
    try:
        during = presences(demo)
    finally:
        lab.hosts[0].power_on()
    node = demo.json("nodes")["nodes"][0]

    assert during == {"gpu-0": "unreachable", "gpu-1": "present"}
    assert node["status"] == "present"
    assert [gpu["claimed_by"] for gpu in node["gpus"]] == [None, None]
    assert demo.json("status", "job.sft")["status"] == "TRAINING_JOB_LOST"


def answers(project: ProjectHarness, *commands: str) -> dict[str, CompletedProcess[str]]:
    """What commands print and how they end, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda command: project.run(*command.split(), code=None), commands)
        return dict(zip(commands, done, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["cut", "power", "freeze"])
def test_what_reachable_ranks_know_is_shown(gang: ProjectHarness, lab: HostLab, fault: str) -> None:
    """With a warning that names the unreachable host and its rank, and exit code 1."""
    commands = [f"{word} all --format json" for word in ("checkpoints list", "metrics", "status")]
    with lab.hosts[1].away(fault):
        done = answers(gang, *commands, "logs all", "nodes --format json", "status")
    listing, metrics, status = (json.loads(done[command].stdout) for command in commands)

    def warning(missing: str) -> str:
        return f"Warning: lab/gpu-1 timed out; not shown: {missing} of rank 1 [node-unreachable]\n"

    checkpoints = {(row["rank"], row["state"]) for row in listing["checkpoints"]}
    assert checkpoints == {(0, "complete"), (2, "complete")}
    unreachable = [{"node": "lab/gpu-1", "ranks": [1], "reason": "lab/gpu-1 timed out"}]
    assert listing["unreachable"] == metrics["unreachable"] == unreachable
    assert done[commands[0]].stderr == warning("the checkpoints")
    assert sorted(done["logs all"].stdout.splitlines()) == ["[rank 0] done", "[rank 2] done"]
    assert done["logs all"].stderr == warning("the log")
    assert {row["rank"] for row in metrics["samples"]} == {0, 2}
    codes = [done[command].returncode for command in (*commands[:2], "logs all", commands[2])]
    assert codes == [INCOMPLETE, INCOMPLETE, INCOMPLETE, 0]
    assert {row["rank"] for row in status["checkpoints"]} == {0, 2}
    assert status["refresh_error"] == "lab/gpu-1 timed out"
    last = "Warning: lab/gpu-1 timed out: last known status of job.all [node-unreachable]\n"
    assert done["status"].stderr == last
    rows = json.loads(done["nodes --format json"].stdout)["nodes"]
    statuses = {row["name"]: row["status"] for row in rows}
    assert statuses == {"gpu-0": "present", "gpu-1": "unreachable", "gpu-2": "present"}


OUTAGES = [
    ("job.", "cut"),
    *(
        (step, fault)
        for step in ("cluster.", "weights.", "job.")
        for fault in ("power", "operator")
    ),
]


def interrupt(result: ProjectHarness, host: FakeHost, step: str, fault: str, *command: str) -> None:
    """Run a command; once a step of this kind has begun, the host is away until its end, or it is killed."""
    with result.start(*command, "--format", "json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["type"] == "step_started" and event["address"].startswith(step):
                break
        if fault == "operator":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return
        with host.away(fault):
            _, errors = process.communicate(timeout=240)
    assert "Traceback" not in errors, errors


def repeat(project: ProjectHarness, *command: str) -> None:
    """Run a command until it succeeds, five times at most."""
    for _ in range(5):
        done = project.run(*command, code=None, seconds=240)
        if done.returncode == 0:
            return
    raise AssertionError(f"{command} doesn't recover: {done.stdout[-2000:]}{done.stderr}")


@pytest.mark.long
@pytest.mark.parametrize(("step", "fault"), OUTAGES)
def test_a_command_that_an_outage_interrupted_is_completed_by_the_next(
    lab: HostLab, tmp_path: Path, step: str, fault: str
) -> None:
    """An apply and a destroy, which leaves no process, mount or file."""
    hosts = lab.hosts[:2]
    before = [({*host.home.rglob("*trainctl*")}, host.mounts()) for host in hosts]
    with client_project(lab, tmp_path) as project:
        write(project, lab, 2, GANG, f'mirror: {{url: "file://{project.mirror}"}}')
        project.write({"weights/noise": os.urandom(6_000_000)})
        interrupt(project, hosts[1], step, fault, "apply", "--auto-approve")
        repeat(project, "apply", "--auto-approve", "--wait")
        status = project.json("status", "all")
        rows = project.json("checkpoints", "list", "all")["checkpoints"]
        interrupt(project, hosts[1], "", fault, "destroy", "--auto-approve", "--delete-checkpoints")
        repeat(project, "destroy", "--auto-approve", "--delete-checkpoints")
        assert project.run("state", "list").stdout == ""
        for host in hosts:
            host.await_quiet()

    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert [rank["exit_code"] for rank in status["ranks"]] == [0, 0]
    assert {row["rank"] for row in rows if row["run"] == status["run"]} == {0, 1}
    assert [({*host.home.rglob("*trainctl*")}, host.mounts()) for host in hosts] == before
