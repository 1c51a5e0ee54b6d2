"""One of three hosts is away: what the others know is told, and the one that is away is named with what it keeps back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess

import pytest

from tests.support.machines.hosts import HostLab, client_project, host_lab
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in, sample

INCOMPLETE = 1
MANIFEST = """\
project: {name: demo}
mirror: {url: "file://MIRROR"}
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
jobs:
  all:
    code: ./src
    compute: {node_count: 3}
    runtime:
      start_commands: ["mkdir $BT_CHECKPOINT_DIR/step-1", "echo $BT_NODE_RANK >$BT_CHECKPOINT_DIR/step-1/model", "echo done"]
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""
Answers = dict[str, CompletedProcess[str]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Three hosts."""
    with host_lab(tmp_path_factory.mktemp("lab"), 3) as made:
        yield made


@pytest.fixture(scope="module")
def demo(lab: HostLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """A project whose job has completed on all three."""
    with client_project(lab, tmp_path_factory.mktemp("demo")) as made:
        named = json.dumps([host.settings for host in lab.hosts])
        text = MANIFEST.replace("MIRROR", str(made.mirror)).replace("HOSTS", named)
        made.write({"trainctl.yaml": text, "src/nothing": ""})
        made.run("apply", "--auto-approve", "--wait")
        yield made
        made.run("destroy", "--auto-approve", "--delete-checkpoints")


def asked(demo: ProjectHarness, *commands: str) -> Answers:
    """What commands print and how they end, asked at the same time."""

    def ask(words: Sequence[str]) -> CompletedProcess[str]:
        return demo.run(*words, code=None)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(commands, pool.map(ask, [one.split() for one in commands]), strict=True))


@one_day_in(2)
@pytest.mark.parametrize("fault", sample(["power", "cut", "freeze"], fixed=0, rotating=1))
def test_what_the_others_know_is_told(demo: ProjectHarness, lab: HostLab, fault: str) -> None:
    """Checkpoints, log and samples of the other ranks, with the host that is away and its rank named beside them, and 1; a row of
    each host and each rank; nothing of it needs the host."""
    listing, logs = "checkpoints list all --format json", "logs all"
    metrics, status = "metrics all --format json", "status all --format json"
    with lab.hosts[1].away(fault):
        told = asked(demo, listing, logs, metrics, status, "nodes --format json", "status")

    found = json.loads(told[listing].stdout)
    assert {(one["rank"], one["state"]) for one in found["checkpoints"]} == {(0, "complete"), (2, "complete")}  # fmt: skip
    assert found["unreachable"] == [
        {"node": "lab/gpu-1", "ranks": [1], "reason": "lab/gpu-1 timed out"}
    ]
    said = "Warning: lab/gpu-1 timed out; not shown: the checkpoints of rank 1 [node-unreachable]\n"
    assert (told[listing].returncode, told[listing].stderr) == (INCOMPLETE, said)

    assert sorted(told[logs].stdout.splitlines()) == ["[rank 0] done", "[rank 2] done"]
    said = "Warning: lab/gpu-1 timed out; not shown: the log of rank 1 [node-unreachable]\n"
    assert (told[logs].returncode, told[logs].stderr) == (INCOMPLETE, said)

    seen = json.loads(told[metrics].stdout)
    assert {one["rank"] for one in seen["samples"]} == {0, 2}
    assert (told[metrics].returncode, seen["unreachable"]) == (INCOMPLETE, found["unreachable"])

    stands = json.loads(told[status].stdout)
    assert {one["rank"] for one in stands["checkpoints"]} == {0, 2}
    assert (told[status].returncode, stands["refresh_error"]) == (0, "lab/gpu-1 timed out")
    assert (
        told["status"].stderr
        == "Warning: lab/gpu-1 timed out: last known status of job.all [node-unreachable]\n"
    )

    rows = {one["name"]: one["status"] for one in json.loads(told["nodes --format json"].stdout)["nodes"]}  # fmt: skip
    assert rows == {"gpu-0": "present", "gpu-1": "unreachable", "gpu-2": "present"}


@one_day_in(3)
def test_where_nobody_can_tell_the_error_names_the_host(demo: ProjectHarness, lab: HostLab) -> None:
    """What one rank alone has is asked for while its host is away: an error, and nothing on standard output."""
    with lab.hosts[1].away("cut"):
        done = demo.run("logs", "all", "--rank", "1", code=1)

    assert done.stdout == ""
    assert done.stderr.startswith("error: lab/gpu-1 timed out")


@one_day_in(3)
def test_a_cache_is_told_by_the_next_of_its_hosts(demo: ProjectHarness, lab: HostLab) -> None:
    """The host that usually tells is away: another one's own is shown, and said to be another's."""
    with lab.hosts[0].away("cut"):
        done = demo.run("cache", "summarize", "demo", "--format", "json", code=INCOMPLETE)

    found = json.loads(done.stdout)
    assert found["node"] == "lab/gpu-1"
    assert found["unreachable"] == [{"node": "lab/gpu-0", "reason": "lab/gpu-0 timed out"}]
    assert (
        done.stderr
        == "Warning: lab/gpu-0 timed out: shown is the cache of lab/gpu-1 [node-unreachable]\n"
    )
