"""What can't be tried without the machine for it: how GPUs are asked for, and what is told of limits."""

from __future__ import annotations

import csv
import resource
from pathlib import Path, PurePosixPath

import pytest

from trainctl.node.containers import command_line
from trainctl.node.containers.command_line import BindMount, ContainerSpec, init_program
from trainctl.node.jobs.container import rdma_access

WANTED = ContainerSpec(
    image="sha256:1",
    directory="/node/runs/key",
    temporary="/node/runs/key/container",
    name="trainctl-x",
    work="/b10/workspace",
    binds=[BindMount("/data/w", "/w", read_only=True)],
    variables={"A": "1"},
    gpus=[],
    shm_size=1,
    memory=None,
    cpus=None,
)


@pytest.mark.parametrize(
    ("engine", "gpus", "words"),
    [
        ("podman", ["GPU-1", "GPU-2"], ["--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=GPU-2"]),
        ("podman", ["all"], ["--device", "nvidia.com/gpu=all"]),
        ("docker", ["GPU-1", "GPU-2"], ["--gpus", '"device=GPU-1,GPU-2"']),
        ("docker", ["all"], ["--gpus", "all"]),
    ],
)  # fmt: skip
def test_gpus_are_asked_for_by_name(engine: str, gpus: list[str], words: list[str]) -> None:
    """podman by the Container Device Interface, docker by its own option, whose value is CSV and so is quoted."""
    argv = command_line.engine_arguments(engine, WANTED._replace(gpus=gpus))
    begin = argv.index(words[0])

    assert list(argv[begin : begin + len(words)]) == words
    assert "--gpus" not in command_line.engine_arguments(engine, WANTED)
    assert "--device" not in command_line.engine_arguments(engine, WANTED)


def test_devices_and_limits() -> None:
    """As the job wants them; apptainer has the limits of the host."""
    wanted = WANTED._replace(devices=["/dev/x"], ulimits={"memlock": -1}, capabilities=["IPC_LOCK"])
    argv = " ".join(command_line.engine_arguments("podman", wanted))
    assert "--device /dev/x --ulimit memlock=-1 --cap-add IPC_LOCK" in argv
    assert "--bind /dev/x" in " ".join(command_line.apptainer_arguments(wanted, root=True))


def test_rdma_of_the_host(tmp_path: Path) -> None:
    """Its devices, with the limits that this user may set."""
    assert rdma_access(tmp_path / "none").devices == ()
    found = rdma_access(tmp_path)
    assert (found.devices, found.capabilities) == ([str(tmp_path)], ["IPC_LOCK"])
    assert found.ulimits["memlock"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]


def test_a_mount_is_a_line_of_csv() -> None:
    """RFC 4180, for docker as for the others."""
    for bind in (
        BindMount('/a,b "c"', "/x", read_only=True),
        BindMount("/a", "/x,readonly", read_only=False),
    ):
        (fields,) = csv.reader([command_line.mount_option(bind)])
        more = ["readonly"] if bind.read_only else []
        assert fields == ["type=bind", f"source={bind.source}", f"target={bind.target}", *more]
    assert (
        command_line.mount_option(BindMount("/a", "/x", read_only=False))
        == "type=bind,source=/a,target=/x"
    )


def test_apptainer_sees_all_gpus_and_is_told_the_claimed() -> None:
    """It has no way to hide some; the job's CUDA is told."""
    wanted = WANTED._replace(gpus=["GPU-1", "GPU-2"])

    assert "--nv" in command_line.apptainer_arguments(wanted, root=True)
    assert (
        command_line.apptainer_variables(wanted)["APPTAINERENV_CUDA_VISIBLE_DEVICES"]
        == "GPU-1,GPU-2"
    )
    assert "CUDA_VISIBLE_DEVICES" not in str(
        command_line.apptainer_variables(WANTED._replace(gpus=["all"]))
    )


def test_apptainer_makes_root_of_whoever_is_not() -> None:
    """Root needs no user namespace, which a machine may not let anybody have."""
    assert "--fakeroot" not in command_line.apptainer_arguments(WANTED, root=True)
    assert "--fakeroot" in command_line.apptainer_arguments(WANTED, root=False)


def test_limits_are_only_told_where_there_are_any() -> None:
    """No limit is the engine's default, and that is none."""
    free = command_line.engine_arguments("podman", WANTED)
    bound = command_line.engine_arguments("podman", WANTED._replace(memory=2**30, cpus=4))

    assert "--memory" not in free
    assert bound[bound.index("--memory") + 1] == str(2**30)
    assert bound[bound.index("--cpus") + 1] == "4"


@pytest.mark.parametrize(
    ("workdir", "mounted", "copied"),
    [
        ("/app", [], True),
        ("/app", ["/app/models/a"], True),
        ("/app", ["/app"], False),
        ("/app/src", ["/app"], False),
        ("/", [], False),
        ("", [], False),
        ("/root", [], False),
        ("/b10/workspace", [], False),
    ],
)
def test_only_a_directory_of_the_image_itself_is_copied(
    workdir: str, mounted: list[str], copied: bool
) -> None:
    """Not the root, not what is mounted over it, not the working directory onto itself."""
    text = init_program(workdir, PurePosixPath("/b10/workspace"), mounted, forwards_term=False)

    assert ("cp -RPn" in text) is copied
