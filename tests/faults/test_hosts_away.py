"""Hosts whose power, link or processes stop: unreachable, never gone, and as they were when they are back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in, sample

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
jobs:
  sft:
    code: ./src
    compute: {accelerator: "H100:1"}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime: {start_commands: ["cat /app/models/tiny/word", "echo ready", "for i in $(seq 0 7231); do echo tick $i; sleep 1; done"]}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Two hosts."""
    with host_lab(tmp_path_factory.mktemp("lab"), 2) as made:
        yield made


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project with a job that runs on the first host; afterwards the hosts are reachable and it is destroyed."""
    with client_project(lab, tmp_path) as made:
        named = json.dumps([host.settings for host in lab.hosts])
        made.write(
            {
                "trainctl.yaml": MANIFEST.replace("HOSTS", named),
                "src/nothing": "",
                "weights/word": "hello\n",
            }
        )
        made.run("apply", "--auto-approve")
        wait_for(lambda: "ready" in made.run("logs", "job.sft").stdout)
        yield made
        made.run("destroy", "--auto-approve", "--stop-running")


def presences(demo: ProjectHarness) -> dict[str, str]:
    return {node["name"]: node["status"] for node in demo.json("nodes")["nodes"]}


@one_day_in(5)
def test_what_a_host_has_is_told(demo: ProjectHarness, lab: HostLab) -> None:
    """GPUs with who has claimed them, addresses, disk, cached weights, runs; the weights came over the link, verified."""
    first, second = demo.json("nodes")["nodes"]

    assert [gpu["claimed_by"] for gpu in first["gpus"]] == ["job.sft run 1", None]
    assert [gpu["memory_mib"] for gpu in second["gpus"]] == [81559, 81559]
    assert first["addresses"][0] == lab.hosts[0].address
    assert first["runs"] == ["job.sft run 1"]
    assert first["cache"]["used"] == len("hello\n")
    assert demo.run("logs", "job.sft").stdout.startswith("hello\n")


def cut(host: FakeHost) -> Callable[[], None]:
    host.link(up=False)
    return lambda: host.link(up=True)


def frozen(host: FakeHost) -> Callable[[], None]:
    host.freeze(on=True)
    return lambda: host.freeze(on=False)


@pytest.mark.parametrize("fault", sample([cut, frozen], fixed=0, rotating=1))
def test_a_host_that_is_silent_is_unreachable_and_its_run_goes_on(
    demo: ProjectHarness, lab: HostLab, fault: Callable[[FakeHost], Callable[[], None]]
) -> None:
    """It is told from its neighbour, nothing is planned because of it, and afterwards all is as it was."""
    mend = fault(lab.hosts[0])
    try:
        away = presences(demo)
        planned = demo.run("plan", "--detailed-exitcode", code=None)
        status = demo.json("status", "job.sft")
    finally:
        mend()

    assert away == {"gpu-0": "unreachable", "gpu-1": "present"}
    assert planned.returncode == 0, planned.stdout
    said = [
        line.rpartition("warning: ")[2].split()[0]
        for line in planned.stderr.splitlines()
        if "warning: " in line
    ]
    assert said == [
        "the",
        "cluster.lab:",
        "job.sft",
    ]  # the mirror, which it keeps, and what runs there
    assert status["status"] == "TRAINING_JOB_RUNNING"
    assert wait_for(lambda: presences(demo)["gpu-0"] == "present", 120)
    assert demo.json("status", "job.sft")["status"] == "TRAINING_JOB_RUNNING"


@one_day_in(5)
def test_a_link_that_is_cut_while_a_log_is_followed_is_noticed(
    demo: ProjectHarness, lab: HostLab
) -> None:
    """It is said that the connection was cut; once it is back the log goes on, and no line was lost or told twice."""
    following = demo.start("logs", "job.sft", "--follow")
    assert following.stdout is not None
    assert following.stderr is not None
    lines = until(following.stdout, "tick 0")
    lab.hosts[0].link(up=False)
    try:
        until(following.stderr, "connection lost; retrying")
    finally:
        lab.hosts[0].link(up=True)
    lines += until(following.stdout, "tick 30")
    following.kill()
    following.communicate()

    ticks = [line for line in lines if line.startswith("tick")]
    assert ticks == [f"tick {number}" for number in range(len(ticks))]


def until(stream: IO[str], words: str) -> list[str]:
    """The lines up to the one with these words."""
    found: list[str] = []
    while words not in "".join(found[-1:]):
        line = stream.readline()
        assert line, found
        found.append(line.rstrip("\n"))
    return found


@one_day_in(2)
def test_a_host_without_power_is_unreachable_and_after_a_boot_its_run_is_lost(
    demo: ProjectHarness, lab: HostLab
) -> None:
    """Its disk and its key are the same, so it is the same node; the run that it had is told as lost, not as running."""
    lab.hosts[0].power_off()
    try:
        away = presences(demo)
    finally:
        lab.hosts[0].power_on()
    back = demo.json("nodes")["nodes"][0]
    status: dict[str, Any] = demo.json("status", "job.sft")

    assert away == {"gpu-0": "unreachable", "gpu-1": "present"}
    assert (back["status"], [gpu["claimed_by"] for gpu in back["gpus"]]) == (
        "present",
        [None, None],
    )
    assert status["status"] == "TRAINING_JOB_LOST"
