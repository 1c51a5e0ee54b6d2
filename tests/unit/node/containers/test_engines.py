"""The command lines of container engines, and their errors in few words."""

from __future__ import annotations

import csv
from pathlib import PurePosixPath

import pytest

from tests.support.cases import cases
from trainctl.node.containers.engines import (
    BindMount,
    ContainerSpec,
    ProgramResult,
    apptainer_arguments,
    apptainer_variables,
    engine_arguments,
    init_program,
    mount_option,
)
from trainctl.node.containers.images import is_registry_unreachable, pull_error

PLAIN = ContainerSpec(
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
TWO = ["GPU-1", "GPU-2"]


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
    assert words in " ".join(engine_arguments(engine, PLAIN._replace(gpus=gpus)))
    assert not {"--gpus", "--device"} & set(engine_arguments(engine, PLAIN))


def test_apptainer_has_all_gpus_and_a_variable_for_those_of_the_job() -> None:
    spec = PLAIN._replace(gpus=TWO)
    variables = apptainer_variables(spec)

    assert "--nv" in apptainer_arguments(spec, root=True)
    assert variables["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert "CUDA_VISIBLE_DEVICES" not in str(apptainer_variables(PLAIN._replace(gpus=["all"])))


def test_apptainer_makes_users_root_inside() -> None:
    """Root needs no user namespace, which a machine may forbid."""
    assert "--fakeroot" not in apptainer_arguments(PLAIN, root=True)
    assert "--fakeroot" in apptainer_arguments(PLAIN, root=False)


def test_devices_and_limits() -> None:
    """Apptainer keeps the limits of the host."""
    spec = PLAIN._replace(
        devices=["/dev/x"], ulimits={"memlock": -1}, capabilities=["IPC_LOCK"], memory=2**30, cpus=4
    )
    words = " ".join(engine_arguments("podman", spec))

    assert "--device /dev/x --ulimit memlock=-1 --cap-add IPC_LOCK" in words
    assert f"--memory {2**30}" in words
    assert "--shm-size 1 " in words
    assert "--cpus 4" in words
    assert "--memory" not in engine_arguments("podman", PLAIN)
    assert "--bind /dev/x" in " ".join(apptainer_arguments(spec, root=True))


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
    work = PurePosixPath("/b10/workspace")
    text = init_program(workdir, work, mounted, input_bytes=1, forwards_term=False)
    assert ("cp -RPn" in text) is (workdir.startswith("/app") and mounted != ["/app"])


@pytest.mark.parametrize("case", cases("node/pull_errors"))
def test_errors_of_pulls_have_few_summaries(case: dict[str, str]) -> None:
    """The engine's message is the detail."""
    result = ProgramResult(1, "", case["message"])
    failure = pull_error("team/x:1", result)

    assert case["summary"] in failure.summary
    assert not is_registry_unreachable(result)
    assert not failure.detail.startswith("Error response from daemon")
