"""Containers of somebody who isn't root: what a job writes is his, whoever the job was inside."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.apptainer import Apptainer, for_all_users
from tests.support.machines.containers import EngineHarness, container, rootless
from tests.support.node_program.nodes import NodeHarness, nobody_prefix, wait_for
from tests.support.tiers import one_day_in
from trainctl.base.system.processes import find_by_environment

pytestmark = pytest.mark.integration


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory for the node of user nobody, who can't enter pytest's."""
    if not nobody_prefix():
        pytest.skip("needs root and setpriv to become user nobody")
    with tempfile.TemporaryDirectory(prefix="trainctl-test-node-") as made:
        Path(made).chmod(0o777)
        yield Path(made)


def nobodys(base: Path, prefix: tuple[str, ...] = ()) -> NodeHarness:
    """A node that runs as nobody; the words of ``prefix`` go before those that make him the caller."""
    node = NodeHarness(base, python="/usr/bin/python3", prefix=[*prefix, *nobody_prefix()])
    node.home.chmod(0o777)
    return node


def lost(node: NodeHarness, engine: EngineHarness) -> None:
    """A run whose supervisor was killed."""
    node.start(node.spec("echo up; sleep 60; :", key="run-2", container=container(node, engine)))
    wait_for(lambda: "up" in node.log("run-2"))
    os.kill(int(node.status("run-2")["pid"]), signal.SIGKILL)
    wait_for(lambda: node.status("run-2")["status"] == "TRAINING_JOB_LOST")


def test_files_are_the_users_though_root_wrote_them(own_docker: EngineHarness, base: Path) -> None:
    """An engine that runs as root, called by a user who isn't: what the job wrote is given back to him before the run has ended."""
    Path(own_docker.variables["DOCKER_HOST"].removeprefix("unix://")).chmod(0o666)
    own_docker.top.chmod(0o755)
    node = nobodys(base)
    node.variables = {"DOCKER_HOST": own_docker.variables["DOCKER_HOST"]}
    checkpoints = node.data / "ckpts"
    done = node.run(
        "mkdir -p sub $BT_CHECKPOINT_DIR/step-1; touch sub/file $BT_CHECKPOINT_DIR/step-1/model",
        "chmod 700 sub; mkdir $BT_SCRATCH_DIR/left; touch $BT_SCRATCH_DIR/left/over; id -u",
        container=container(node, own_docker),
        environment={
            "BT_CHECKPOINT_DIR": str(checkpoints),
            "BT_SCRATCH_DIR": str(node.directory() / "scratch"),
        },
    )
    owners = {
        path.name: path.stat().st_uid
        for path in (*(node.directory() / "work").rglob("*"), *checkpoints.rglob("*"))
    }

    assert (done["status"], node.log()) == ("TRAINING_JOB_COMPLETED", "0\n"), node.log()
    assert {"sub", "file", "step-1", "model"} <= set(owners)
    assert set(owners.values()) == {65534}
    assert not (node.directory() / "scratch").exists()
    assert node.call("remove", {"key": "run-1"}) == {"removed": True}


@one_day_in(6)
def test_podman_works_without_root(own_podman: EngineHarness, base: Path) -> None:
    """A user's own podman: the job is root inside, and what it writes is the user's; nothing is left after its supervisor was killed."""
    node = nobodys(base)
    engine = rootless(own_podman, node)
    node.variables = engine.variables
    done = node.run("id -u; touch mine", container=container(node, engine))

    assert (done["status"], node.log()) == ("TRAINING_JOB_COMPLETED", "0\n"), done
    assert (node.directory() / "work/mine").stat().st_uid == 65534
    lost(node, engine)
    assert find_by_environment(f"TRAINCTL_RUN_DIRECTORY={node.directory('run-2')}".encode()) == []
    assert engine.containers() == []
    engine("system", "reset", "--force")


@one_day_in(3)
def test_apptainer_works_without_root(own_apptainer: Apptainer, base: Path) -> None:
    """The job is root inside, as which it finds its cache, and can make nobody else the owner of what it writes; no cache is left in a home."""
    engine = for_all_users(own_apptainer, base)
    node = nobodys(base, engine.prefix)
    node.variables = engine.variables
    cache = node.data / "cache"
    done = node.run(
        "id -u; touch mine $BT_PROJECT_CACHE_DIR/cached; chown 5:5 mine || echo only root",
        container=container(node, engine),
        environment={"BT_PROJECT_CACHE_DIR": str(cache)},
    )

    assert (done["status"], node.log().splitlines()[0]) == ("TRAINING_JOB_COMPLETED", "0"), done
    assert "only root" in node.log()
    assert (node.directory() / "work/mine").stat().st_uid == 65534
    assert (cache / "cached").stat().st_uid == 65534
    lost(node, engine)
    wait_for(lambda: engine.containers() == [])
    assert node.call("remove", {"key": "run-2"}) == {"removed": True}
    assert [path.name for path in node.home.rglob("*")] == [".apptainer"]
