"""Containers of a user without privileges: what a job writes is the user's, whatever its user in the container is."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.containers import EngineHarness, container, rootless
from tests.support.node_program.nodes import NodeHarness, nobody_prefix, wait_for
from trainctl.base.system.processes import find_by_environment

pytestmark = pytest.mark.integration


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory for the node of user nobody, who can't enter pytest's."""
    if not nobody_prefix():
        pytest.skip("needs root and setpriv to become user nobody")
    with tempfile.TemporaryDirectory(prefix="trainctl-test-node-") as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def node_of_nobody(base: Path, prefix: tuple[str, ...] = ()) -> NodeHarness:
    """A node that runs as nobody, below the words of ``prefix``."""
    node = NodeHarness(base, python="/usr/bin/python3", prefix=[*prefix, *nobody_prefix()])
    node.home.chmod(0o777)
    return node


def lose_a_run(node: NodeHarness, engine: EngineHarness) -> None:
    """Start run-2 and kill its supervisor."""
    node.start(node.spec("echo up; sleep 60; :", key="run-2", container=container(node, engine)))
    wait_for(lambda: "up" in node.log("run-2"))
    os.kill(int(node.status("run-2")["pid"]), signal.SIGKILL)
    wait_for(lambda: node.status("run-2")["status"] == "TRAINING_JOB_LOST")


def test_files_that_root_wrote_are_given_to_the_user(own_docker: EngineHarness, base: Path) -> None:
    """With an engine that runs as root, before the run has ended."""
    Path(own_docker.variables["DOCKER_HOST"].removeprefix("unix://")).chmod(0o666)
    own_docker.top.chmod(0o755)
    node = node_of_nobody(base)
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


@pytest.mark.long
def test_podman_works_without_root(own_podman: EngineHarness, base: Path) -> None:
    """Nothing is left after the supervisor was killed."""
    node = node_of_nobody(base)
    engine = rootless(own_podman, node)
    node.variables = engine.variables
    done = node.run("id -u; touch mine", container=container(node, engine))

    assert (done["status"], node.log()) == ("TRAINING_JOB_COMPLETED", "0\n"), done
    assert (node.directory() / "work/mine").stat().st_uid == 65534
    lose_a_run(node, engine)
    assert find_by_environment(f"TRAINCTL_RUN_DIRECTORY={node.directory('run-2')}".encode()) == []
    assert engine.containers() == []
    engine("system", "reset", "--force")
