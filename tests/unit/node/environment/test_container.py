"""A run in a container: what it finds there, how it ends, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.containers import EngineHarness, container
from tests.support.node_program.nodes import NodeHarness, all_text_below, is_alive, wait_for
from trainctl.base.system.processes import find_by_environment
from trainctl.node.containers.engines import LABEL

pytestmark = pytest.mark.integration

COMPLETED = "TRAINING_JOB_COMPLETED"


@pytest.fixture
def held(node: NodeHarness, engine: EngineHarness) -> Iterator[NodeHarness]:
    """A node that finds the engine, which has no container before and after."""
    node.variables = engine.variables
    assert engine.containers() == []
    yield node
    node.close()
    assert engine.containers() == []


def start_lasting(
    node: NodeHarness, engine: EngineHarness, script: str = "sleep 600; :", grace: float = 5
) -> int:
    """Start a job and wait until its command runs; return its PID on the host."""
    command = f"echo up; exec sh -c '{script}' MARKED-{node.base.name}"
    node.start(node.spec(command, container=container(node, engine), grace_seconds=grace))
    wait_for(lambda: "up" in node.log())
    return wait_for(lambda: shell_with(f"MARKED-{node.base.name}"))


def shell_with(word: str) -> int | None:
    """The PID of a shell with this word in its command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if word.encode() in words and words[0] == b"sh":
                return int(path.name)
    return None


def test_a_job_finds_its_directories(held: NodeHarness, engine: EngineHarness) -> None:
    """Weights are read-only, files that it keeps are the host's, and no variable of the host is there."""
    held.variables = {**held.variables, "FROM_HOST": "leaks"}
    held.mirror.add("model.bin", b"weights")
    held.deliver()
    listing = held.mirror.listing.id
    weights = [
        {"address": "weights.tiny", "listing": listing, "mount_location": "/app/tiny"},
        {"address": "weights.rel", "listing": listing, "mount_location": "models/rel"},
    ]
    checkpoints, cache = held.data / "ckpts", held.root / "caches" / "demo"
    done = held.run(
        "pwd; cat nothing.txt /app/tiny/model.bin models/rel/model.bin; echo",
        "echo $BT_WORKING_DIR $BT_SCRATCH_DIR $BT_CHECKPOINT_DIR",
        "echo $BT_RW_CACHE_DIR $TRAINCTL_WEIGHTS_REL $PLAIN",
        "echo 1 2>/dev/null >/app/tiny/new || echo read-only",
        "echo kept >$BT_CHECKPOINT_DIR/model; echo cached >$BT_RW_CACHE_DIR/a; env >env.txt; id -u",
        container=container(held, engine),
        weights=weights,
        environment={
            "BT_CHECKPOINT_DIR": str(checkpoints),
            "BT_PROJECT_CACHE_DIR": str(cache),
            "BT_RW_CACHE_DIR": str(cache),
            "TRAINCTL_WEIGHTS_REL": str(held.directory() / "work/models/rel"),
            "PLAIN": "two  words, 'quoted', $HOME `id`",
        },
    )

    outcome = (done["status"], done["mount"], done["weights_mode"])
    assert outcome == (COMPLETED, "container", "read-only"), held.log()
    assert [line for line in held.log().splitlines() if "can't create" not in line] == [
        "/b10/workspace",
        "weightsweights",
        "/b10/workspace /mnt/bt-scratch /mnt/ckpts",
        "/root/.cache/user_artifacts /b10/workspace/models/rel two words, 'quoted', $HOME `id`",
        "read-only",
        "0",
    ]
    assert (checkpoints / "model").read_text() == "kept\n"
    assert (cache / "a").read_text() == "cached\n"
    variables = (held.directory() / "work/env.txt").read_text()
    assert "FROM_HOST" not in variables
    assert str(held.home) not in variables
    assert not (held.directory() / "scratch").exists()


SECRET = "line one '\"\n line two $HOME `id`"


def test_secrets_are_in_the_job_only(held: NodeHarness, engine: EngineHarness) -> None:
    """No argument, file or description of the container has them while it runs; the engine's list names the run."""
    spec = held.spec(
        'printf "%s" "$TOKEN" | wc -c; printf "%s" "$TOKEN" | grep -c "two .HOME"',
        "echo up; sleep 60",
        container=container(held, engine),
        environment_variables={"TOKEN": {"secret": "token"}},
    )
    held.start(spec, {"token": SECRET})
    wait_for(lambda: "up" in held.log())
    described = [engine.described(container) for container in engine.containers()]
    arguments = b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    on_disk = all_text_below(held.base) + all_text_below(engine.top / "root/overlay-containers")
    held.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert held.log().split()[:2] == [str(len(SECRET)), "1"]
    assert described
    for place in ("".join(described).encode(), arguments, on_disk):
        assert b"two $HOME" not in place
    if engine.name != "apptainer":
        (document,) = json.loads(described[0])
        assert document["Name"].lstrip("/").startswith("trainctl-abcdefg-rank-0-")
        assert document["Config"]["Labels"]["trainctl.run"] == str(held.directory())


def test_failures_are_reported(held: NodeHarness, engine: EngineHarness) -> None:
    """A failing command with its exit code; a container that can't start with the engine's words, and no retry."""
    failed = held.run("export A=5", "exit $A", "echo never", container=container(held, engine))
    missing = {**container(held, engine), "image": "sha256:" + 64 * "0", "workdir": ""}
    retry = {"max_attempts": 3, "delay": 0}
    absent = held.run("echo hi", key="run-2", container=missing, retry=retry)

    assert (failed["status"], failed["exit_code"]) == ("TRAINING_JOB_FAILED", 5)
    assert failed["error"] == "start command 2 of 3 exited with 5: exit $A"
    assert "never" not in held.log()
    assert absent["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert absent["error"].startswith("cannot start the container: ")
    assert "000000" in absent["error"]
    assert absent["retries"] is None


def test_a_stopped_job_may_save_first(held: NodeHarness, engine: EngineHarness) -> None:
    saves = 'trap "echo asked; sleep 1; echo saved; exit 0" TERM; while :; do sleep 0.1; done'
    start_lasting(held, engine, saves, grace=60)
    done = held.call("stop", {"key": "run-1"})

    assert done["status"] == "TRAINING_JOB_STOPPED"
    of_the_shell = ("Terminated", "Killed")  # about children that were ended
    lines = [line for line in held.log().splitlines() if line not in of_the_shell]
    assert lines == ["up", "asked", "saved"]
    assert engine.containers() == []


@pytest.mark.long
def test_a_job_that_ignores_the_stop_is_killed(held: NodeHarness, engine: EngineHarness) -> None:
    pid = start_lasting(held, engine, 'trap "" TERM; while :; do sleep 1; done')
    done = held.call("stop", {"key": "run-1", "grace_seconds": 0.5})

    assert done["status"] == "TRAINING_JOB_STOPPED"
    wait_for(lambda: not is_alive(pid))
    assert engine.containers() == []


def holders(node: NodeHarness) -> list[int]:
    """The supervisor, the warden and the engine's program of the node's run."""
    supervisor = int(node.status()["pid"])
    warden = wait_for(lambda: children(supervisor))[0]
    return [supervisor, warden, wait_for(lambda: children(warden))[0]]


def children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.parametrize(
    "killed",
    [
        [0],
        pytest.param([1], marks=pytest.mark.long),
        pytest.param([2], marks=pytest.mark.long),
        [0, 1, 2],
    ],
    ids=["supervisor", "warden", "engine", "all"],
)
def test_no_container_is_left_if_its_holders_are_killed(
    held: NodeHarness, engine: EngineHarness, killed: list[int]
) -> None:
    """Once the status of the run is requested; if all were killed, its process 1 ends it."""
    pid = start_lasting(held, engine)
    processes = holders(held)
    for number in killed:
        with contextlib.suppress(ProcessLookupError):  # one ends with the other
            os.kill(processes[number], signal.SIGKILL)
    if len(killed) > 1:
        wait_for(lambda: not is_alive(processes[0]))
        wait_for(lambda: engine.name == "apptainer" or not is_alive(pid))
        assert held.call("remove", {"key": "run-1"}) == {"removed": True}
        assert not held.directory().exists()
    else:
        wait_for(lambda: held.status()["status"] != "TRAINING_JOB_RUNNING")
        status = held.status() if killed == [0] else held.ended()
        expected = "TRAINING_JOB_LOST" if killed == [0] else "TRAINING_JOB_FAILED"
        assert status["status"] == expected
    wait_for(lambda: not is_alive(pid))
    assert engine.containers() == []
    assert find_by_environment(f"TRAINCTL_RUN_DIRECTORY={held.directory()}".encode()) == []


@pytest.mark.long
def test_the_images_working_directory_is_copied_below_the_code(
    held: NodeHarness, engine: EngineHarness, own_podman: EngineHarness, tmp_path: Path
) -> None:
    """Files of the code win, and mounts are left out."""
    text = "FROM localhost/busybox:1\nWORKDIR /app\nRUN echo image >a && echo image >b && mkdir -p d models && echo deep >d/c && echo x >models/big\n"
    (tmp_path / "Containerfile").write_text(text)
    own_podman("build", "--quiet", "--tag", "localhost/workdir:1", str(tmp_path))
    held.upload_code({"a": "code"}, "sha256:mine")
    held.mirror.add("model.bin", b"weights")
    held.deliver()
    weights = {
        "address": "w",
        "listing": held.mirror.listing.id,
        "mount_location": "/app/models/tiny",
    }
    done = held.run(
        "cat a; echo; cat b d/c; ls; ls /app/models/tiny; cat /app/b",
        code="sha256:mine",
        container=container(held, engine, engine.offered("localhost/workdir:1")),
        weights=[weights],
    )

    assert done["status"] == COMPLETED, held.log()
    assert held.log().split() == ["code", "image", "deep", "a", "b", "d", "model.bin", "image"]


@pytest.mark.parametrize("method", ["start", "stop"])
def test_what_an_ended_run_left_is_removed_later(
    held: NodeHarness, engine: EngineHarness, method: str
) -> None:
    """As if the engine had not responded at its end."""
    if engine.name == "apptainer":
        pytest.skip("has no containers of its own")
    start_lasting(held, engine)
    path = held.directory() / "container.json"
    record = path.read_text()
    held.call("stop", {"key": "run-1", "grace_seconds": 0})
    label = f"{LABEL}={held.directory()}"
    engine("run", "--detach", "--label", label, engine.small, "sleep", "60")
    path.write_text(record)
    if method == "start":
        held.start(held.spec("true", key="run-2"))
    else:
        held.call("stop", {"key": "run-1", "grace_seconds": 0})
    assert (engine.containers(), path.exists()) == ([], False)
