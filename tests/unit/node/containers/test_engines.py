"""The command lines of container engines, and their errors in few words."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.cases import cases
from trainctl.node.containers.engines import (
    BindMount,
    ContainerLimits,
    ContainerSpec,
    DeviceAccess,
    ProgramResult,
    engine_command,
    init_program,
    mount_option,
)
from trainctl.node.containers.images import is_registry_unreachable, pull_error

PLAIN = ContainerSpec(
    image="sha256:1",
    directory=Path("/node/runs/key"),
    name="trainctl-x",
    binds=[BindMount("/data/w", "/w", read_only=True)],
    variables={"A": "1"},
    gpus=[],
    limits=ContainerLimits(1),
)
TWO = ["GPU-1", "GPU-2"]


def arguments(engine: str, spec: ContainerSpec, *, root: bool = True) -> tuple[str, ...]:
    return engine_command(engine, spec, root=root)[0]


@pytest.mark.parametrize(
    ("engine", "gpus", "words"),
    [
        ("podman", TWO, "--device nvidia.com/gpu=GPU-1 --device nvidia.com/gpu=GPU-2"),
        ("podman", ["all"], "--device nvidia.com/gpu=all"),
        ("docker", TWO, '--gpus "device=GPU-1,GPU-2"'),
        ("docker", ["all"], "--gpus all"),
    ],
)
def test_gpus_are_named(engine: str, gpus: list[str], words: str) -> None:
    """For podman by the Container Device Interface, for docker in a quoted CSV value."""
    assert words in " ".join(arguments(engine, PLAIN._replace(gpus=gpus)))
    assert not {"--gpus", "--device"} & set(arguments(engine, PLAIN))


def test_apptainer_has_all_gpus_and_a_variable_for_those_of_the_job() -> None:
    spec = PLAIN._replace(gpus=TWO)
    words, variables = engine_command("apptainer", spec, root=True)

    assert "--nv" in words
    assert variables["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    unnamed = engine_command("apptainer", PLAIN._replace(gpus=["all"]), root=True)
    assert "CUDA_VISIBLE_DEVICES" not in str(unnamed)


def test_apptainer_makes_users_root_inside() -> None:
    """Root needs no user namespace, which a machine may forbid."""
    assert "--fakeroot" not in arguments("apptainer", PLAIN)
    assert "--fakeroot" in arguments("apptainer", PLAIN, root=False)


def test_devices_and_limits() -> None:
    """Apptainer keeps the limits of the host."""
    spec = PLAIN._replace(
        access=DeviceAccess(["/dev/x"], {"memlock": -1}, ["IPC_LOCK"]),
        limits=ContainerLimits(1, 2**30, 4),
    )
    words = " ".join(arguments("podman", spec))

    assert "--device /dev/x --ulimit memlock=-1 --cap-add IPC_LOCK" in words
    assert f"--memory {2**30}" in words
    assert "--shm-size 1 " in words
    assert "--cpus 4" in words
    assert "--memory" not in arguments("podman", PLAIN)
    assert "--bind /dev/x" in " ".join(arguments("apptainer", spec))


@pytest.mark.parametrize(
    "bind",
    [
        BindMount('/a,b "c"', "/x", read_only=True),
        BindMount("/a", "/x,readonly", read_only=False),
    ],
)
def test_a_mount_is_a_line_of_csv(bind: BindMount) -> None:
    (fields,) = csv.reader([mount_option(bind)])
    more = ["readonly"] if bind.read_only else []
    assert fields == ["type=bind", f"source={bind.source}", f"target={bind.target}", *more]


@pytest.mark.parametrize("workdir", ["/app", "/app/src", "/", "", "/root", "/b10/workspace"])
@pytest.mark.parametrize("mounted", [[], ["/app/models/a"], ["/app"]])
def test_the_images_working_directory_is_copied_unless_it_is_mounted(
    workdir: str, mounted: list[str]
) -> None:
    text = init_program(workdir, mounted, input_bytes=1, forwards_term=False)
    assert ("cp -RPn" in text) is (workdir.startswith("/app") and mounted != ["/app"])


@pytest.mark.parametrize("case", cases("node/pull_errors"))
def test_errors_of_pulls_have_few_summaries(case: dict[str, str]) -> None:
    """The engine's message is the detail."""
    result = ProgramResult(1, "", case["message"])
    failure = pull_error("team/x:1", result)

    assert case["summary"] in failure.summary
    assert not is_registry_unreachable(result)
    assert not failure.detail.startswith("Error response from daemon")
