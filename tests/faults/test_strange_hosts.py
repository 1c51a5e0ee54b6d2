"""Hosts with a wrong clock, two users, restrictions on an account, and hostile values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import python38, wait_for
from tests.support.projects.project import ProjectHarness


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Two hosts, which see the Python 3.8 of this machine if it has one."""
    python = python38()
    seen = [Path(python).parents[1]] if python else []
    with host_lab(tmp_path_factory.mktemp("lab"), 2, seen) as lab:
        yield lab


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the hosts."""
    with client_project(lab, tmp_path) as result:
        yield result
        result.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints", code=None)


def declare(
    project: ProjectHarness,
    hosts: list[dict[str, Any]],
    *commands: str,
    where: str = "/app/models/tiny",
    **more: Any,
) -> None:
    """A job on all of these hosts, with six megabytes of weights."""
    runtime = {
        "start_commands": commands,
        "checkpointing_config": {"enabled": True},
        "cache_config": {"enabled": True},
        "environment_variables": more.pop("variables", {}),
    }
    weights = [{"source": "file:./weights", "mount_location": where}]
    job = {"code": "./src", "weights": weights, "runtime": runtime}
    manifest = {
        "project": {"name": "demo"},
        "mirror": {"url": f"file://{project.mirror}"},
        "clusters": {"lab": {"provider": "ssh", "connect_timeout": 5, "hosts": hosts}},
        "jobs": {
            "sft": {**job, "compute": {"node_count": len(hosts), "accelerator": "H100:1"}, **more}
        },
    }
    project.write(
        {"trainctl.yaml": json.dumps(manifest), "src/nothing": "", "weights/word": "hello\n"}
    )
    project.write({"weights/noise": bytes(range(256)) * 24_000})


def destroy(project: ProjectHarness, *hosts: FakeHost) -> None:
    """Nothing is left on these hosts: no process, and no file but the project's own."""
    project.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints")
    for host in hosts:
        host.await_quiet()
        assert [path for path in host.home.rglob("*") if "trainctl" in path.name] == []


def is_completed(project: ProjectHarness) -> bool:
    return bool(project.json("status", "job.sft")["status"] == "TRAINING_JOB_COMPLETED")


@pytest.mark.long
def test_two_accounts_of_a_host_share_its_gpus(
    demo: ProjectHarness, lab: HostLab, tmp_path: Path
) -> None:
    """Of two runs that want all GPUs one waits for the other, and each destroy leaves the other account's files."""
    host = lab.hosts[0]
    host.do("useradd", "--create-home", "--password", "*", "ana")
    host.do("install", "-d", "-o", "ana", "-m", "700", "/home/ana/.ssh")
    keys = ".ssh/authorized_keys"
    host.do("install", "-o", "ana", "-m", "600", f"/root/{keys}", f"/home/ana/{keys}")
    (tmp_path / "other").mkdir()
    with client_project(lab, tmp_path / "other") as ana:
        commands = ("cat /app/models/tiny/word", "while ! test -e /run/gate; do sleep 0.1; done")
        compute = {"accelerator": "H100:2"}
        declare(demo, [host.settings], *commands, compute=compute)
        declare(ana, [{**host.settings, "user": "ana"}], *commands, compute=compute)
        for process in [created.start("apply", "--auto-approve") for created in (demo, ana)]:
            with process:
                process.communicate(timeout=300)
            assert process.returncode == 0
        statuses = sorted(created.json("status", "job.sft")["status"] for created in (demo, ana))
        host.do("touch", "/run/gate")
        for value in (demo, ana):
            wait_for(partial(is_completed, value), 120)

        assert statuses == ["TRAINING_JOB_PENDING", "TRAINING_JOB_RUNNING"]
        destroy(demo)
        assert ana.run("logs", "job.sft").stdout == "hello\n"
        destroy(ana, host)
        assert host.do("find", "/home/ana", "-name", "*trainctl*") == ""
    host.do("rm", "/run/gate")


HOSTILE = "it's $(touch ~/owned) `touch ~/owned` \"; touch ~/owned; & | > ~/owned # %s \\ *"
SHOW = """\
import json, os, pathlib
places = [pathlib.Path(os.environ["TRAINCTL_WEIGHTS_SFT_0"]), pathlib.Path(os.environ["MOUNTED"])]
print(json.dumps([os.environ["VALUE"], [sorted(path.name for path in place.iterdir()) for place in places]]))
pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], os.environ["VALUE"].replace("/", "_")).write_text("x")
"""
OTHERS = [pytest.param(shell, marks=pytest.mark.long) for shell in ("bash", "zsh", "tcsh")]


@pytest.mark.parametrize("shell", ["fish", *OTHERS])
def test_hostile_values_arrive_and_are_not_executed(
    demo: ProjectHarness, lab: HostLab, shell: str
) -> None:
    """In every field that names something on a host, in names of files and in variables, whatever the account's shell."""
    host = lab.hosts[0]
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    word = HOSTILE.replace("/", "_").replace("\\", "")  # not allowed in names of weights
    host.do("sed", "-i", f"s|^root:.*|root:x:0:0:root:/root:{shutil.which(shell)}|", "/etc/passwd")
    host.do("ln", "-sf", "/usr/bin/python3", f"/opt/{word}")
    host.do("mkdir", "-p", f"/srv/{word}/inside")
    settings = {**host.settings, "dir": f"/var/lib/{word}", "python": f"/opt/{word}"}
    mount = {"host_path": f"/srv/{word}", "mount_location": f"/app/{word}/b", "read_only": True}
    variables = {"VALUE": HOSTILE, "MOUNTED": mount["mount_location"]}
    declare(
        demo,
        [settings],
        "python3 show.py",
        where=f"/app/{word}/a",
        mounts=[mount],
        variables=variables,
        compute={},
    )
    shutil.rmtree(demo.directory / "weights")
    demo.write({"src/show.py": SHOW, f"src/{word}": "", f"weights/{word}": "x"})
    demo.run("apply", "--auto-approve", "--wait")

    output = json.loads(demo.run("logs", "job.sft").stdout)
    demo.json("nodes")
    destroy(demo, host)
    host.do("sed", "-i", "s|^root:.*|root:x:0:0:root:/root:/bin/bash|", "/etc/passwd")

    assert output == [HOSTILE, [[word], ["inside"]]]
    assert host.do("find", "/root", "/var/lib", "-name", "owned") == ""
    assert host.do("sh", "-c", 'ls -d "$1" || true', "sh", f"/var/lib/{word}") == ""
