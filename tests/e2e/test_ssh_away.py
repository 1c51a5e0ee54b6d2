"""What needs no host doesn't ask it, and what needs one host waits for no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshds
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, connect_timeout: 5, hosts: HOSTS}}
jobs:
  sft:
    code: ./src
    compute: {node_count: 2}
    weights: [{source: "file:./weights", mount_location: weights/tiny}]
    runtime:
      start_commands: ["mkdir $BT_CHECKPOINT_DIR/step-1", "echo rank $BT_NODE_RANK > $BT_CHECKPOINT_DIR/step-1/model"]
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""


@pytest.fixture
def hosts(tmp_path: Path, fresh: ProjectHarness) -> Iterator[list[Sshd]]:
    """Two hosts, on which a run has completed and left a checkpoint of each rank."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 2) as found:
        user.known_hosts.write_text("".join(host.known for host in found))
        fresh.write({"src/nothing": "", "weights/word": "hello\n"})
        run(fresh, found)
        yield found


def run(project: ProjectHarness, hosts: list[Sshd], more: str = "") -> None:
    """Run the job, with that added to the manifest."""
    named = json.dumps([host.settings for host in hosts])
    project.write({"trainctl.yaml": MANIFEST.replace("HOSTS", named) + more})
    project.run("apply", "--auto-approve", "--wait")


@one_day_in(7)
def test_offline_no_host_is_asked(hosts: list[Sshd], fresh: ProjectHarness) -> None:
    """A plan of what is there, of a new job and of a destroy calls no ssh, takes what is recorded for what is there and says of the rest
    that it isn't known; with the network it calls one."""
    called = hosts[0].home.parent / "called"
    program = Path(fresh.variables["PATH"].split(":")[0]) / "ssh"
    program.write_text(program.read_text().replace("exec ", f"touch {called}\nexec "))

    plan = fresh.run("plan", "--offline", "--detailed-exitcode", code=0)
    destroy = fresh.run("plan", "--offline", "--destroy", "--detailed-exitcode", code=2)
    fresh.write(
        {"trainctl.yaml": (fresh.directory / "trainctl.yaml").read_text().replace("sft", "new")}
    )
    new = fresh.json("plan", "--offline")
    assert not called.exists()

    fresh.run("plan", "--detailed-exitcode", code=2)
    assert called.exists()
    assert "No changes" in plan.stdout
    assert plan.stderr == ""
    assert "unreachable" not in destroy.stdout + destroy.stderr
    assert {row["mount"] for row in new["deliveries"]} == {None}
    assert new["errored"] is False


@one_day_in(14)
def test_a_checkpoint_needs_the_host_of_its_rank_alone(
    hosts: list[Sshd], fresh: ProjectHarness
) -> None:
    """With the other host off it is there; of the rank whose host is off the error names that host."""
    hosts[1].process.terminate()
    hosts[1].process.wait()

    fresh.run("checkpoints", "download", "job.sft", "--rank", "0", "--output-dir", "here")
    refused = fresh.run("checkpoints", "download", "job.sft", "--rank", "1", code=1)

    assert (fresh.directory / "here/step-1/model").read_text() == "rank 0\n"
    assert "lab/gpu-1 " in refused.stderr


@one_day_in(14)
def test_a_checkpoint_in_a_directory_of_all_hosts_needs_any_of_them(
    hosts: list[Sshd], fresh: ProjectHarness, tmp_path: Path
) -> None:
    """The host of its rank is off, and it comes through the other one."""
    url = (tmp_path / "store").as_uri()
    run(fresh, hosts, f'checkpoints: {{url: "{url}"}}\n')
    fresh.run("run", "job.sft", "--auto-approve", "--follow")
    hosts[1].process.terminate()
    hosts[1].process.wait()

    fresh.run("checkpoints", "download", "job.sft", "--rank", "1")

    assert (fresh.directory / "step-1/model").read_text() == "rank 1\n"
