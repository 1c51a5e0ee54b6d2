"""A run in a container: what it finds there, how it ends, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.containers import EngineHarness, container
from tests.support.node_program.nodes import NodeHarness, all_text_below, is_alive, wait_for
from tests.support.tiers import one_day_in
from trainctl.base.system.processes import find_by_environment

pytestmark = pytest.mark.integration

WITH_STORAGE = ("podman", "docker")
"""The engines that have storage and a list of containers."""


@pytest.fixture
def held(node: NodeHarness, engine: EngineHarness) -> Iterator[NodeHarness]:
    """A node that finds the engine; no container is there before and after."""
    node.variables = engine.variables
    assert engine.containers() == []
    yield node
    node.close()
    assert engine.containers() == []


def lasting(
    node: NodeHarness, engine: EngineHarness, *, grace: float = 5, script: str = "sleep 60; :"
) -> int:
    """Start a job that lasts, and wait until its command runs; its process, as the host counts."""
    spec = node.spec(
        f"echo up; exec sh -c '{script}' MARKED-{node.base.name}",
        container=container(node, engine),
        grace_seconds=grace,
    )
    node.start(spec)
    wait_for(lambda: "up" in node.log())
    return wait_for(lambda: _named(f"MARKED-{node.base.name}"))


def said(node: NodeHarness) -> list[str]:
    """What the job wrote, without what a shell says of children that were ended."""
    return [line for line in node.log().splitlines() if line not in ("Terminated", "Killed")]


def _named(word: str) -> int | None:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words and words[0] == b"sh":
                return int(path.name)
    return None


def test_a_job_finds_its_places(held: NodeHarness, engine: EngineHarness) -> None:
    """The service's directories; weights read-only where they are wanted; what it keeps lies in the user's directories."""
    held.mirror.add("model.bin", b"weights")
    held.deliver()
    weights = [
        {"name": "weights.tiny", "listing": held.mirror.listing.id, "mount_location": "/app/tiny"},
        {"name": "weights.rel", "listing": held.mirror.listing.id, "mount_location": "models/rel"},
    ]
    checkpoints, cache = held.data / "ckpts", held.root / "caches" / "demo"
    done = held.run(
        "pwd; cat nothing.txt /app/tiny/model.bin models/rel/model.bin; echo",
        "echo $BT_WORKING_DIR $BT_SCRATCH_DIR $BT_CHECKPOINT_DIR",
        "echo $BT_RW_CACHE_DIR $TRAINCTL_WEIGHTS_REL $PLAIN",
        "echo 1 >/app/tiny/new || echo read-only",
        "echo kept >$BT_CHECKPOINT_DIR/model; echo cached >$BT_RW_CACHE_DIR/a; echo out >out.txt; id -u",
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

    assert (done["status"], done["mount"], done["weights_mode"]) == (
        "TRAINING_JOB_COMPLETED",
        "container",
        "read-only",
    ), held.log()
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
    assert (held.directory() / "work/out.txt").read_text() == "out\n"
    assert not (held.directory() / "scratch").exists()


def test_links_and_named_places_are_mounts(held: NodeHarness, engine: EngineHarness) -> None:
    """Where the manifest names a place, absolute or below the working directory, the job finds the directory there."""
    absolute, relative = held.data / "a", held.data / "r"
    done = held.run(
        "echo $BT_CHECKPOINT_DIR $BT_PROJECT_CACHE_DIR; echo 1 >/data/out/x; echo 2 >cache/y",
        container=container(held, engine),
        environment={
            "BT_CHECKPOINT_DIR": "/data/out",
            "BT_PROJECT_CACHE_DIR": str(held.directory() / "work/cache"),
        },
        links=[
            {"path": "/data/out", "target": str(absolute)},
            {"path": "cache", "target": str(relative)},
        ],
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED", held.log()
    assert held.log() == "/data/out /b10/workspace/cache\n"
    assert ((absolute / "x").read_text(), (relative / "y").read_text()) == ("1\n", "2\n")


def test_nothing_of_the_host_is_in_the_environment(
    held: NodeHarness, engine: EngineHarness
) -> None:
    """The job has its own variables and the image's; PATH and HOME are the image's."""
    held.variables = {**held.variables, "FROM_HOST": "leaks"}
    held.run("env | cut -d= -f1 | sort; echo HOME $HOME", container=container(held, engine))

    assert "FROM_HOST" not in held.log()
    assert str(held.home) not in held.log()
    assert "BT_WORKING_DIR" in held.log()


SECRET = "line one '\"\n line two $HOME `id`"


def test_secrets_are_nowhere_but_in_the_job(held: NodeHarness, engine: EngineHarness) -> None:
    """The job sees the value as it is; no argument, file or description of the container holds it, while it runs and later."""
    spec = held.spec(
        'printf "%s" "$TOKEN" | wc -c; printf "%s" "$TOKEN" | grep -c "two .HOME"',
        "echo up; sleep 60",
        container=container(held, engine),
        secret_environment={"TOKEN": "token"},
    )
    held.start(spec, {"token": SECRET})
    wait_for(lambda: "up" in held.log())
    described = "".join(engine.described(one) for one in engine.containers())
    arguments = b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    on_disk = all_text_below(held.base) + all_text_below(engine.top / "root/overlay-containers")
    held.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert held.log().split()[:2] == [str(len(SECRET)), "1"]
    assert described
    for place in (described.encode(), arguments, on_disk):
        assert b"two $HOME" not in place


def test_a_failing_command_is_named(held: NodeHarness, engine: EngineHarness) -> None:
    """Exit code and command as on a host; exports survive from one command to the next."""
    done = held.run("export A=5", "exit $A", "echo never", container=container(held, engine))

    assert (done["status"], done["exit_code"]) == ("TRAINING_JOB_FAILED", 5)
    assert done["error"] == "start command 2 of 3 exited with 5: exit $A"
    assert "never" not in held.log()


def test_a_container_that_cannot_start_is_no_failed_job(
    held: NodeHarness, engine: EngineHarness
) -> None:
    """DEPLOY_FAILED with the engine's own words, and no retry."""
    missing = {**container(held, engine), "image": "sha256:" + 64 * "0", "workdir": ""}
    done = held.run("echo hi", container=missing, retry={"max_attempts": 3, "delay_seconds": 0})

    assert done["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert done["error"].startswith("cannot start the container: ")
    assert "000000" in done["error"]
    assert done["retries"] is None


def test_each_attempt_finds_what_was_kept(held: NodeHarness, engine: EngineHarness) -> None:
    """A new container for each attempt, with the same checkpoints; the count goes up."""
    checkpoints = held.data / "ckpts"
    done = held.run(
        "echo attempt $BT_RETRY_COUNT; cat $BT_CHECKPOINT_DIR/* 2>/dev/null || :",
        "echo saved >$BT_CHECKPOINT_DIR/step; [ $BT_RETRY_COUNT = 1 ]",
        container=container(held, engine),
        environment={"BT_CHECKPOINT_DIR": str(checkpoints)},
        retry={"max_attempts": 2, "delay_seconds": 0},
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED"
    assert held.log().splitlines() == ["attempt 0", "attempt 1", "saved"]


SAVES = (
    'trap "echo asked; sleep 1; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
)


def test_a_stopped_job_may_save_first(held: NodeHarness, engine: EngineHarness) -> None:
    """Every process of the job is asked once; it has its grace; then the run is STOPPED and the container gone."""
    spec = held.spec(f"sh -c '{SAVES}'", container=container(held, engine), grace_seconds=20)
    held.start(spec)
    wait_for(lambda: "ready" in held.log())
    done = held.call("stop", {"key": "run-1"})

    assert done["status"] == "TRAINING_JOB_STOPPED"
    assert said(held) == ["ready", "asked", "saved"]
    assert engine.containers() == []


def test_a_job_that_will_not_end_is_made_to(held: NodeHarness, engine: EngineHarness) -> None:
    """After the grace nothing of it is left."""
    pid = lasting(held, engine, script='trap "" TERM; while :; do sleep 1; done')
    done = held.call("stop", {"key": "run-1", "grace_seconds": 0.5})

    assert done["status"] == "TRAINING_JOB_STOPPED"
    wait_for(lambda: not is_alive(pid))
    assert engine.containers() == []


def test_what_a_job_leaves_behind_ends_with_it(held: NodeHarness, engine: EngineHarness) -> None:
    """A process in the background is asked to end and doesn't outlive the run."""
    saves = "trap 'echo asked; exit' TERM; echo bg; while :; do sleep 0.1; done"
    done = held.run(
        f'sh -c "{saves}" &',
        "until grep -q bg /run/trainctl/log; do sleep 0.1; done",
        container=container(held, engine),
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED"
    assert said(held) == ["bg", "asked"]


def _chain(node: NodeHarness) -> list[int]:
    """The supervisor, the warden and the engine's program of the node's run, in this order."""
    supervisor = int(node.status()["pid"])
    warden = wait_for(lambda: _children(supervisor))[0]
    return [supervisor, warden, wait_for(lambda: _children(warden))[0]]


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@one_day_in(2)
@pytest.mark.parametrize(
    "which", [[0], [1], [2], [0, 1, 2]], ids=["supervisor", "warden", "engine", "all"]
)
def test_whoever_is_killed_no_container_is_left(
    held: NodeHarness, engine: EngineHarness, which: list[int]
) -> None:
    """SIGKILL to any of the processes that hold a run: once the run is looked at, its job and its container are gone."""
    pid = lasting(held, engine)
    chain = _chain(held)
    for one in which:
        with contextlib.suppress(ProcessLookupError):  # it has gone with the one before
            os.kill(chain[one], signal.SIGKILL)
    wait_for(lambda: held.status()["status"] != "TRAINING_JOB_RUNNING")
    done = held.ended() if 0 not in which else held.status()

    assert done["status"] == ("TRAINING_JOB_LOST" if 0 in which else "TRAINING_JOB_FAILED")
    wait_for(lambda: not is_alive(pid))
    assert engine.containers() == []
    assert find_by_environment(f"TRAINCTL_RUN_DIRECTORY={held.directory()}".encode()) == []


def test_a_removed_run_takes_its_container_along(held: NodeHarness, engine: EngineHarness) -> None:
    """Also one whose supervisor was killed and that nobody looked at since."""
    lasting(held, engine)
    for one in _chain(held):
        with contextlib.suppress(ProcessLookupError):  # one dies of the other
            os.kill(one, signal.SIGKILL)
    wait_for(lambda: not is_alive(int(held.status()["pid"] or 0)) if held.status()["pid"] else True)

    assert held.call("remove", {"key": "run-1"}) == {"removed": True}
    assert engine.containers() == []
    assert not held.directory().exists()


def test_the_images_own_directory_is_there_and_the_code_wins(
    held: NodeHarness, engine: EngineHarness, own_podman: EngineHarness, tmp_path: Path
) -> None:
    """What lies in the image's WORKDIR is copied into the working directory, but for what the code has and what is mounted."""
    text = "FROM localhost/busybox:1\nWORKDIR /app\nRUN echo image >a && echo image >b && mkdir -p d models && echo deep >d/c && echo x >models/big\n"
    (tmp_path / "Containerfile").write_text(text)
    own_podman(
        "build",
        "--quiet",
        "--tag",
        "localhost/workdir:1",
        "--file",
        str(tmp_path / "Containerfile"),
        str(tmp_path),
    )
    image = engine.offered("localhost/workdir:1")
    held.upload_code({"a": "code"}, "sha256:mine")
    held.mirror.add("model.bin", b"weights")
    held.deliver()
    done = held.run(
        "cat a; echo; cat b d/c; ls; ls /app/models/tiny; cat /app/b",
        code="sha256:mine",
        container=container(held, engine, image),
        weights=[
            {"name": "w", "listing": held.mirror.listing.id, "mount_location": "/app/models/tiny"}
        ],
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED", held.log()
    assert held.log().split() == ["code", "image", "deep", "a", "b", "d", "model.bin", "image"]


@pytest.mark.parametrize("engine", WITH_STORAGE, indirect=True)
def test_memory_is_shared_as_asked(held: NodeHarness, engine: EngineHarness) -> None:
    """``/dev/shm`` is as large as asked."""
    held.run("df -k /dev/shm | tail -1", container=container(held, engine, shm_size=64 * 2**20))
    assert held.log().split()[1] == str(64 * 1024)


def test_progress_from_a_container(held: NodeHarness, engine: EngineHarness) -> None:
    """Both ways, with the paths of the container."""
    post = """wget -q -O- --header "Authorization: Bearer $(cat $KUBEFLOW_TRAINER_STATUS_TOKEN)" --post-data \\
        '{"trainerStatus": {"metrics": [{"name": "loss", "value": "2"}]}}' $KUBEFLOW_TRAINER_STATUS_URL"""
    append = """echo '{"step": 3}' >>$TRAINCTL_PROGRESS; echo $TRAINCTL_PROGRESS"""
    held.run(append, post, container=container(held, engine))
    assert held.log().split() == ["/run/trainctl/progress/lines.jsonl"]
    found = held.status()["progress"]
    assert (found["step"], found["loss"]) == (3, 2.0)


def test_devices_and_limits_of_the_job(held: NodeHarness, engine: EngineHarness) -> None:
    """The job finds them in its container."""
    if engine.name == "apptainer":
        pytest.skip("apptainer keeps the host's limits")
    wanted = container(held, engine, devices=["/dev/fuse"], ulimits={"nofile": 77, "nproc": 4096})
    done = held.run("ls /dev/fuse; ulimit -n", container=wanted)
    assert held.log().split() == ["/dev/fuse", "77"], done["error"]


def test_memory_is_shared_and_limited(held: NodeHarness, engine: EngineHarness) -> None:
    """``/dev/shm`` is half of the machine's memory; more memory than allowed ends the job."""
    held.run("df -k /dev/shm | tail -1", container=container(held, engine))
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert abs(int(held.log().split()[1]) - half // 1024) <= 4  # whole pages
    done = held.run(
        "dd if=/dev/zero of=/dev/shm/x bs=1M count=64",
        key="run-2",
        container=container(held, engine, memory=16 * 2**20, cpus=1),
    )
    assert done["status"] == "TRAINING_JOB_FAILED"


def test_a_job_may_write_more_than_memory_holds(held: NodeHarness, engine: EngineHarness) -> None:
    """``/tmp`` and the home are on a disk, new for each attempt, and gone afterwards."""
    done = held.run(
        "grep -E '^tmpfs (/tmp|/root) ' /proc/mounts || :; ls -A /tmp /root",
        "touch /tmp/left /root/over; [ $BT_RETRY_COUNT = 1 ]",
        container=container(held, engine),
        retry={"max_attempts": 2, "delay_seconds": 0},
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED", held.log()
    assert "tmpfs" not in held.log()
    assert "left" not in held.log()
    assert "over" not in held.log()
    assert not (held.directory() / "container").exists()


@pytest.mark.parametrize("engine", ["podman", "apptainer"], indirect=True)
def test_any_name_can_be_mounted(held: NodeHarness, engine: EngineHarness) -> None:
    """A comma is none between the options of a mount, nor does a quote begin a text there.

    (podman's service, which stands behind docker's command here, puts the names together again without quotes.)
    """
    target = held.data / 'x,readonly "y" é [1]'
    done = held.run(
        """echo 1 >'/a,b "c"/out'""",
        container=container(held, engine),
        links=[{"path": '/a,b "c"', "target": str(target)}],
    )

    assert done["status"] == "TRAINING_JOB_COMPLETED", done["error"] or held.log()
    assert (target / "out").read_text() == "1\n"


@pytest.mark.parametrize("engine", WITH_STORAGE, indirect=True)
def test_the_record_says_what_was_run(held: NodeHarness, engine: EngineHarness) -> None:
    """An engine's list names the run; its label is the run's directory."""
    lasting(held, engine)
    (one,) = engine.containers()
    told = json.loads(engine.described(one))[0]
    held.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert told["Name"].lstrip("/").startswith("trainctl-abcdefg-rank-0-")
    assert told["Config"]["Labels"]["trainctl.run"] == str(held.directory())


def test_metrics_are_those_of_the_container(held: NodeHarness, engine: EngineHarness) -> None:
    """CPU and memory of the job's processes, whoever's children they are, and of none after the end."""
    spec = held.spec("dd if=/dev/zero of=/dev/null bs=150M", container=container(held, engine))
    held.start(spec)
    busy = wait_for(lambda: next(filter(_is_busy, samples(held)), None), 60)
    held.call("stop", {"key": "run-1", "grace_seconds": 0})
    last = samples(held)[-1]

    assert busy["processes"] > 1
    assert last["processes"] == 0


def _is_busy(sample: dict[str, Any]) -> bool:
    busy: bool = sample["cpu_usage"] > 0.2 and sample["cpu_memory_usage_bytes"] > 1e8
    return busy


def samples(node: NodeHarness) -> list[dict[str, Any]]:
    """What the node has measured of its run."""
    found: list[dict[str, Any]] = node.call("metrics", {"key": "run-1"})["samples"]
    return found
