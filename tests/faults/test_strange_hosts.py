"""Hosts that are not as one would like them: a wrong clock, a full disk, two users, an account in which little is allowed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import python38, wait_for
from tests.support.projects.project import ProjectHarness

HOURS = 3600
MANIFEST = """\
project: {name: demo}
mirror: {url: "file://MIRROR"}
clusters: {lab: {provider: ssh, connect_timeout: 5, hosts: HOSTS}}
jobs:
  sft:
    code: ./src
    compute: {node_count: COUNT, accelerator: "H100:GPUS"}
    weights: [{source: "file:./weights", mount_location: WHERE}]
    runtime:
      start_commands:
        - cat WHERE/word
        - mkdir $BT_CHECKPOINT_DIR/step-1 && cat WHERE/word > $BT_CHECKPOINT_DIR/step-1/model
        - COMMAND
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Two hosts, which see the Python 3.8 of this machine if it has one."""
    python = python38()
    seen = [Path(python).parents[1]] if python else []
    with host_lab(tmp_path_factory.mktemp("lab"), 2, seen) as made:
        yield made


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the hosts."""
    with client_project(lab, tmp_path) as made:
        yield made
        made.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints", code=None)


def declare(
    made: ProjectHarness,
    hosts: list[dict[str, Any]],
    command: str = "echo done",
    *,
    gpus: int = 1,
    where: str = "/app/models/tiny",
) -> None:
    """A job on all of these hosts, with six megabytes of weights."""
    words = {"HOSTS": json.dumps(hosts), "COUNT": str(len(hosts)), "COMMAND": command}
    text = MANIFEST.replace("MIRROR", str(made.mirror))
    for name, value in {**words, "GPUS": str(gpus), "WHERE": where}.items():
        text = text.replace(name, value)
    made.write({"trainctl.yaml": text, "src/nothing": "", "weights/word": "hello\n"})
    made.write({"weights/noise": bytes(range(256)) * 24_000})


def destroyed(made: ProjectHarness, *hosts: FakeHost) -> None:
    """Nothing is left of it: no process, and no file but the project's own."""
    made.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints")
    for host in hosts:
        host.await_quiet()
        assert [path for path in host.home.rglob("*") if "trainctl" in path.name] == []


@pytest.mark.parametrize("hours", [-7])
def test_a_clock_that_is_hours_off_does_no_harm(
    demo: ProjectHarness, lab: HostLab, hours: int
) -> None:
    """One of two hosts is hours behind or ahead: the gang completes, its times are in order, nothing is planned afterwards, and nothing is left."""
    lab.hosts[1].skew(hours * HOURS)
    try:
        told = int(
            lab.hosts[1].do("/usr/bin/python3", "-ISc", "import time; print(int(time.time()))")
        )
        declare(demo, [host.settings for host in lab.hosts])
        demo.run("apply", "--auto-approve", "--wait")
        status = demo.json("status", "job.sft")
        kept = demo.json("checkpoints", "list", "job.sft")["checkpoints"]
        log = demo.run("logs", "job.sft").stdout.splitlines()
        again = demo.run("plan", "--detailed-exitcode")
    finally:
        lab.hosts[1].unskew()

    assert abs(told - time.time() - hours * HOURS) < HOURS
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert status["created_at"] <= status["started_at"] <= status["ended_at"]
    assert {(one["rank"], one["complete"]) for one in kept} == {(0, True), (1, True)}
    assert sorted(log) == sorted(f"[rank {n}] {word}" for n in range(2) for word in ("hello", "done"))  # fmt: skip
    assert again.returncode == 0
    destroyed(demo, *lab.hosts)


def test_two_users_of_one_host_at_once(demo: ProjectHarness, lab: HostLab, tmp_path: Path) -> None:
    """Each applies at the same time, as another account of the host, and wants all its GPUs: one run waits for the other, and each destroy leaves the other's alone."""
    host = lab.hosts[0]
    host.do("useradd", "--create-home", "--password", "*", "ana")
    host.do("install", "-d", "-o", "ana", "-m", "700", "/home/ana/.ssh")
    host.do("install", "-o", "ana", "-m", "600", "/root/.ssh/authorized_keys", "/home/ana/.ssh/authorized_keys")  # fmt: skip
    (tmp_path / "other").mkdir()
    with client_project(lab, tmp_path / "other") as ana:
        waits = "while ! test -e /run/gate; do sleep 0.1; done"
        declare(demo, [host.settings], waits, gpus=2)
        declare(ana, [{**host.settings, "user": "ana"}], waits, gpus=2)
        both = [made.start("apply", "--auto-approve") for made in (demo, ana)]
        codes = [code_of(process) for process in both]
        states = sorted(made.json("status", "job.sft")["status"] for made in (demo, ana))
        host.do("touch", "/run/gate")
        for made in (demo, ana):
            wait_for(lambda made=made: ended(made), 60)  # type: ignore[misc]

        assert codes == [0, 0]
        assert states == ["TRAINING_JOB_PENDING", "TRAINING_JOB_RUNNING"]
        destroyed(demo)
        assert ana.run("logs", "job.sft").stdout == "hello\n"
        destroyed(ana, host)
        assert host.do("find", "/home/ana", "-name", "*trainctl*") == ""
    host.do("rm", "/run/gate")


def code_of(process: Popen[str]) -> int:
    """Its exit code, once it has ended."""
    with process:
        process.communicate(timeout=120)
    return process.returncode


def ended(made: ProjectHarness) -> bool:
    """Whether the newest run is over, well."""
    status: str = made.json("status", "job.sft")["status"]
    return status == "TRAINING_JOB_COMPLETED"


def test_an_account_in_which_little_is_allowed(demo: ProjectHarness, lab: HostLab) -> None:
    """Nothing in /tmp may be executed, the home can't be written, the login shell talks, and Python is the oldest one: it works all the same."""
    host = lab.hosts[0]
    python = python38()
    if python is None:
        pytest.skip("needs a Python 3.8 (pyenv, or uv python install 3.8)")
    (host.home / ".bashrc").write_text("echo Welcome to the cluster; echo No mining >&2\n")
    (host.home / ".bash_profile").write_text("echo Welcome again; cd /\n")
    host.do("mount", "-o", "remount,noexec", "/tmp")
    host.do("mount", "-o", "remount,bind,ro", "/root")
    with ExitStack() as stack:
        stack.callback(host.do, "mount", "-o", "remount,bind,rw", "/root")
        stack.callback(host.do, "mount", "-o", "remount,exec", "/tmp")
        declare(demo, [{**host.settings, "dir": "/var/lib/t", "python": python}])
        demo.run("apply", "--auto-approve", "--wait")
        log = demo.run("logs", "job.sft").stdout.splitlines()
        destroyed(demo, host)

        assert log[-2:] == ["hello", "done"]
        assert host.do("sh", "-c", "ls -d /var/lib/t || true") == ""
    for name in (".bashrc", ".bash_profile"):
        (host.home / name).unlink()


HOSTILE = "it's $(touch ~/owned) `touch ~/owned` \"; touch ~/owned; & | > ~/owned # %s \\ *"
HOSTILE_JOB = """\
project: {name: demo}
mirror: {url: "file://MIRROR"}
clusters: {lab: {provider: ssh, connect_timeout: 5, hosts: HOSTS}}
jobs:
  sft:
    code: ./src
    weights: [{source: "file:./weights", mount_location: WHERE}]
    mounts: [{host_path: MOUNT, mount_location: MOUNTED, read_only: true}]
    runtime:
      start_commands: ["python3 show.py"]
      environment_variables: {VALUE: HOSTILE}
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""
SHOW = """\
import json, os, pathlib
places = [pathlib.Path(os.environ["TRAINCTL_WEIGHTS_SFT_0"]), pathlib.Path(os.environ["MOUNTED"])]
print(json.dumps([os.environ["VALUE"], [sorted(one.name for one in place.iterdir()) for place in places]]))
pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], os.environ["VALUE"].replace("/", "_")).write_text("x")
"""


OTHERS = [pytest.param(shell, marks=pytest.mark.long) for shell in ("sh", "bash", "zsh", "tcsh")]


@pytest.mark.parametrize("shell", ["fish", *OTHERS])
def test_hostile_values_are_values(demo: ProjectHarness, lab: HostLab, shell: str) -> None:
    """In every field that names something on a host, in names of files and in variables, whatever the account's shell: all arrive, and nothing is run."""
    host = lab.hosts[0]
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    word = HOSTILE.replace("/", "_").replace("\\", "")  # what no name of a file of weights may have
    host.do("sed", "-i", f"s|^root:.*|root:x:0:0:root:/root:{shutil.which(shell)}|", "/etc/passwd")
    host.do("ln", "-sf", "/usr/bin/python3", f"/opt/{word}")
    host.do("mkdir", "-p", f"/srv/{word}/inside")
    settings = {**host.settings, "dir": f"/var/lib/{word}", "python": f"/opt/{word}"}
    text = HOSTILE_JOB.replace("MIRROR", str(demo.mirror)).replace("HOSTS", json.dumps([settings])).replace("HOSTILE", json.dumps(HOSTILE))  # fmt: skip
    places = {"WHERE": f"/app/{word}/a", "MOUNTED": f"/app/{word}/b", "MOUNT": f"/srv/{word}"}
    for name, place in places.items():
        text = text.replace(name, json.dumps(place))
    text = text.replace("{VALUE:", "{MOUNTED: " + json.dumps(places["MOUNTED"]) + ", VALUE:")
    demo.write({"trainctl.yaml": text, "src/show.py": SHOW, f"src/{word}": "", f"weights/{word}": "x"})  # fmt: skip
    demo.run("apply", "--auto-approve", "--wait")

    said = json.loads(demo.run("logs", "job.sft").stdout)
    demo.json("nodes")
    destroyed(demo, host)
    host.do("sed", "-i", "s|^root:.*|root:x:0:0:root:/root:/bin/bash|", "/etc/passwd")

    assert said == [HOSTILE, [[word], ["inside"]]]
    assert host.do("find", "/root", "/var/lib", "-name", "owned") == ""
    assert host.do("sh", "-c", 'ls -d "$1" || true', "sh", f"/var/lib/{word}") == ""
