"""The variables of a run, and the directories that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.inputs.environment import (
    JOB_VARIABLES,
    HostRequirements,
    RunPaths,
    checkpoint_directory,
    directory_links,
    environment,
    file_name,
    host_requirements,
    run_paths,
    weights_variable,
)
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plugin_api.provider import Node

JOB = Address.parse("job.sft")
NODE = Node("lab", "lab-0", "local", root="/cache/lab-0", data="/data", python="python3", gpus=2)
RUN = RunRecord("abc1234", 3, "key", generation=2, store={"prefix": "demo/sft/3-abc1234"})
WHERE = run_paths(NODE, "demo", RUN, 0)


def job(
    variables: Mapping[str, Any] | None = None,
    checkpointing: Mapping[str, Any] | None = None,
    cache: Mapping[str, Any] | None = None,
    accelerator: str | None = None,
) -> JobSpec:
    """A job, as far as its environment looks at it."""
    weights = [
        {"address": "weights.qwen3", "mount_location": "/app/models/qwen3"},
        {"address": "weights.sft-1", "mount_location": "weights/tiny.en"},
    ]
    return JobSpec.from_attributes(
        {
            "project": "demo",
            "compute": {"accelerator": accelerator},
            "weights": weights,
            "runtime": {
                "environment_variables": variables or {},
                "checkpointing_config": checkpointing or {"enabled": False},
                "cache_config": cache or {"enabled": False},
            },
        }
    )


def variables_of(spec: JobSpec, address: Address = JOB, where: RunPaths = WHERE) -> dict[str, str]:
    return environment(address, spec, RUN, where, "lineage", gpus=NODE.gpus)


def test_the_documented_variables_are_set() -> None:
    environ = variables_of(job(checkpointing={"enabled": True}, cache={"enabled": True}))
    weights = {"TRAINCTL_WEIGHTS_QWEN3", "TRAINCTL_WEIGHTS_SFT_1"}
    assert set(environ) == {*JOB_VARIABLES} | weights
    declared = variables_of(job({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}))
    assert declared["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "5"


def test_who_and_where_a_run_is() -> None:
    environ = variables_of(job())
    assert environ["BT_TRAINING_JOB_ID"] == "abc1234"
    assert environ["BT_TRAINING_JOB_NAME"] == f"sft-{environ['BT_TRAINING_JOB_ID']}"
    assert environ["BT_TRAINING_PROJECT_NAME"] == "demo"
    assert re.fullmatch("[0-9a-f]{7}", environ["BT_TRAINING_PROJECT_ID"])
    assert environ["BT_RETRY_COUNT"] == "1"
    several = [environ[name] for name in ("BT_GROUP_SIZE", "BT_NODE_RANK", "BT_LEADER_ADDR")]
    assert several == ["1", "0", "127.0.0.1"]
    assert environ["BT_WORKING_DIR"] == "/cache/lab-0/runs/key/work"
    assert environ["BT_SCRATCH_DIR"] == "/cache/lab-0/runs/key/scratch"


@pytest.mark.parametrize(("accelerator", "count"), [(None, "2"), ("H100", "1"), ("H100:4", "4")])
def test_gpus_are_those_asked_for_or_all(accelerator: str | None, count: str) -> None:
    assert variables_of(job(accelerator=accelerator))["BT_NUM_GPUS"] == count


def test_directories_that_are_off_have_no_variable() -> None:
    environ = variables_of(job())
    assert not {"BT_CHECKPOINT_DIR", "BT_PROJECT_CACHE_DIR", "BT_RW_CACHE_DIR"} & set(environ)
    assert directory_links(job(), WHERE) == []


def test_kept_directories_are_named_where_they_lie() -> None:
    """Without wishes of the job's nothing is linked: the variables name the real places."""
    spec = job(checkpointing={"enabled": True}, cache={"enabled": True})
    environ = variables_of(spec)
    assert environ["BT_CHECKPOINT_DIR"] == "/data/checkpoints/demo/sft/3-abc1234/rank-0"
    assert (
        environ["BT_PROJECT_CACHE_DIR"] == environ["BT_RW_CACHE_DIR"] == "/cache/lab-0/caches/demo"
    )
    assert environ["BT_TEAM_CACHE_DIR"] == "/cache/lab-0/caches/.team"
    assert directory_links(spec, WHERE) == []


def test_weights_are_named_where_they_can_be_read() -> None:
    environ = variables_of(job())
    assert environ["TRAINCTL_WEIGHTS_QWEN3"] == "/app/models/qwen3"
    assert environ["TRAINCTL_WEIGHTS_SFT_1"] == f"{WHERE.work}/weights/tiny.en"
    assert weights_variable(Address.parse("weights.a.b-c")) == "TRAINCTL_WEIGHTS_A_B_C"


def test_declared_variables_are_there_and_hide_none_of_ours() -> None:
    environ = variables_of(job({"LR": "1e-5", "BT_NODE_RANK": "7"}))
    assert (environ["LR"], environ["BT_NODE_RANK"]) == ("1e-5", "0")


def test_secrets_are_told_apart() -> None:
    """The environment of the specification never holds one; which variable takes which is said beside it."""
    spec = job({"LR": "1e-5", "WANDB_API_KEY": {"secret": "wandb"}})
    assert "WANDB_API_KEY" not in variables_of(spec)
    assert spec.runtime.secret_environment == {"WANDB_API_KEY": "wandb"}


def test_one_of_many_has_places_of_its_own() -> None:
    """Keys hold anything, so directories and the name of a run are named by a digest of them."""
    item, other = (Address.parse(f'job.sweep["lr=1/{n}"]') for n in (1, 2))
    assert variables_of(job(), item)["BT_TRAINING_JOB_NAME"].startswith(f"{file_name(item)}-")
    assert re.fullmatch(r"sweep-[0-9a-f]{8}", file_name(item))
    assert file_name(item) != file_name(other)
    assert str(checkpoint_directory(NODE, RUN)) == "/data/checkpoints/demo/sft/3-abc1234"


FILES = {"train.py": "-", "run.sh": "x", "noexec.sh": "-", "sub/run.py": "-"}


def needs(*commands: str, **more: Any) -> HostRequirements:
    """Of a job with the code above."""
    runtime = {"start_commands": commands, "environment_variables": more.pop("variables", {})}
    return host_requirements(JobSpec.from_attributes({"runtime": runtime, **more}), FILES)


@pytest.mark.parametrize(("command", "program"), by_text("jobs/programs"))
def test_the_program_of_the_first_command(command: str, program: str) -> None:
    assert needs(command) == HostRequirements(program)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python gone.py", "gone.py"),
        ("sh sub/gone.sh", "sub/gone.sh"),
        ("./gone.sh", "gone.sh"),
        ("./noexec.sh", "noexec.sh"),
    ],
)
def test_a_script_that_is_not_in_the_code(command: str, script: str) -> None:
    assert script in needs(command).problem
