"""A cluster of hosts from the command line: from a plan to a destroy that leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import validate

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshds
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, processes
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  sft:
    code: ./src
    weights: [{source: "file:./weights", mount_location: weights/tiny}]
    runtime:
      start_commands: ["cat weights/tiny/word", "sleep SECONDS"]
"""


@pytest.fixture
def hosts(tmp_path: Path, fresh: ProjectHarness) -> Iterator[list[Sshd]]:
    """Two hosts, of which the project's user knows the first; its manifest names both."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 2) as result:
        user.known_hosts.write_text(result[0].known)
        write(fresh, result[:1])
        fresh.write({"src/nothing.txt": "", "weights/word": "hello from weights\n"})
        yield result


def write(project: ProjectHarness, hosts: list[Sshd], seconds: int = 0) -> None:
    named = json.dumps([host.settings for host in hosts])
    project.write(
        {"trainctl.yaml": MANIFEST.replace("HOSTS", named).replace("SECONDS", str(seconds))}
    )


def test_a_job_runs_on_a_host_and_nothing_is_left_of_it(
    fresh: ProjectHarness, hosts: list[Sshd]
) -> None:
    """A second plan has no changes, an offline plan calls no ssh, and destroy leaves only the mirror."""
    home = hosts[0].home
    planned = fresh.json("plan")
    untouched = list(home.iterdir())
    fresh.run("apply", "--auto-approve", "--wait")
    again = fresh.run("plan", "--detailed-exitcode")
    ssh = Path(fresh.variables["PATH"].split(":")[0]) / "ssh"
    program = ssh.read_text()
    ssh.write_text(f"#!/bin/sh\ntouch {home}/called\nexit 1\n")
    offline = fresh.run("plan", "--offline", "--detailed-exitcode")
    ssh.write_text(program)
    log = fresh.run("logs", "job.sft").stdout
    status = fresh.json("status", "job.sft")
    fresh.run("destroy", "--auto-approve")

    assert planned["deliveries"][0]["node"] == "lab/gpu-0"
    assert untouched == []
    assert "No changes" in again.stdout
    assert "No changes" in offline.stdout
    assert not (home / "called").exists()
    assert log == "hello from weights\n"
    assert (status["status"], status["ranks"][0]["node"]) == ("TRAINING_JOB_COMPLETED", "lab/gpu-0")
    mirror = home / ".local/share/trainctl/mirror"
    left = [path for path in home.rglob("*") if mirror not in (path, *path.parents)]
    assert [path for path in left if path.name != ".cache" and path not in mirror.parents] == []
    assert wait_for(lambda: not hosts[0].connections())


@pytest.mark.long
def test_files_are_private_whatever_the_umask(tmp_path: Path, fresh: ProjectHarness) -> None:
    """With umask 000 here and on the host, nobody else reads or writes what an apply makes; the jobs' own files are as ever."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    fresh.forks = False
    with sshds(tmp_path, user, 1, 'ForceCommand umask 000; eval "$SSH_ORIGINAL_COMMAND"') as result:
        user.known_hosts.write_text(result[0].known)
        fresh.write({"src/nothing.txt": "", "weights/word": "hello from weights\n"})
        write(fresh, result)
        manifest = fresh.directory / "trainctl.yaml"
        here = "  here: {code: ./src, runtime: {start_commands: ['umask; touch made']}}\n"
        manifest.write_text(manifest.read_text() + here)
        before = {*tmp_path.rglob("*")}
        for arguments in (("apply", "--auto-approve", "--wait"), ("plan", "--out", "saved.plan")):
            with fresh.start(*arguments, umask=0) as process:
                process.communicate()
        paths = {path for path in tmp_path.rglob("*") if not path.is_symlink()} - before
        read = [path for path in paths if path.stat().st_mode & 0o077]
        content = {"blobs", "trees", "work"}  # read-only content, and what jobs write

        assert [path for path in read if not content & {*path.parts}] == []
        assert [path for path in read if path.stat().st_mode & 0o022] == []
        assert {"saved.plan", "trainctl.lock", "made"} <= {path.name for path in paths}
        assert fresh.run("logs", "job.here").stdout == "0022\n"
        fresh.run("destroy", "--auto-approve")


def test_a_live_run_is_listed_and_stopped_through_the_host(
    fresh: ProjectHarness, hosts: list[Sshd]
) -> None:
    """Apply returns while it runs; stop ends it with all its processes."""
    write(fresh, hosts[:1], 7231)
    fresh.run("apply", "--auto-approve")
    listed = fresh.json("nodes")
    fresh.run("stop", "job.sft", "--grace", "0s")

    validate(listed, schema("nodes"))
    (node,) = listed["nodes"]
    assert (node["status"], node["reachable"]) == ("present", True)
    assert node["runs"] == ["job.sft run 1"]
    (listing,) = node["cache"]["listings"]
    assert listing["source"] == "file:./weights"
    assert listing["leased_by"] != []
    assert fresh.json("status", "job.sft")["status"] == "TRAINING_JOB_STOPPED"
    assert wait_for(lambda: not processes("sleep\x007231"))


def test_an_unreachable_host_is_listed_and_can_be_forgotten(
    fresh: ProjectHarness, hosts: list[Sshd]
) -> None:
    """``nodes`` doesn't fail. A destroy that needs the host names the command, and works after it."""
    known = Path(fresh.variables["PATH"].split(":")[0]).parent / "known_hosts"
    known.write_text("".join(host.known for host in hosts))
    write(fresh, hosts)
    fresh.run("apply", "--auto-approve", "--wait")
    hosts[0].process.terminate()
    hosts[0].process.wait()
    rows = {node["name"]: node for node in fresh.json("nodes")["nodes"]}
    refused = fresh.run("destroy", "--auto-approve", "--target", "job.sft", code=1)
    no_terminal = fresh.run("nodes", "forget", "lab/gpu-0", code=64)
    unknown = fresh.run("nodes", "forget", "lab/gpu-9", "--auto-approve", code=64)
    fresh.run("nodes", "forget", "lab/gpu-0", "--auto-approve")
    planned = fresh.actions()
    fresh.run("destroy", "--auto-approve")

    assert (rows["gpu-0"]["status"], rows["gpu-0"]["reachable"]) == ("unreachable", False)
    assert (rows["gpu-1"]["status"], rows["gpu-1"]["reachable"]) == ("present", True)
    assert rows["gpu-0"]["reason"].startswith("lab/gpu-0 refused the connection")
    assert "trainctl nodes forget lab/gpu-0" in refused.stderr
    assert "no-terminal" in no_terminal.stderr
    assert "In the state: lab/gpu-0, lab/gpu-1." in unknown.stderr
    assert planned["cluster.lab"] == ["update"]
    assert fresh.json("status")["jobs"] == []


def test_an_unknown_host_is_confirmed_on_a_terminal(
    fresh: ProjectHarness, hosts: list[Sshd]
) -> None:
    """The key's fingerprint is shown; after yes the host is known. Without a terminal it is refused."""
    write(fresh, hosts[1:])
    refused = fresh.run("nodes")
    words = ["script", "-qec", f"{sys.executable} -m trainctl nodes", "/dev/null"]
    confirmed = subprocess.run(
        words, cwd=fresh.directory, env=fresh.environment, input="yes\n", capture_output=True, text=True
    )  # fmt: skip
    (node,) = fresh.json("nodes")["nodes"]

    assert "SHA256:" in refused.stdout
    assert confirmed.returncode == 0
    assert "is unknown. Its host key is SHA256:" in " ".join(confirmed.stdout.split())
    assert "Only 'yes' will be accepted" in confirmed.stdout
    assert node["status"] == "planned"
