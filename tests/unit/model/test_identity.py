"""The identity of a run: all inputs of its result, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainctl.model.address import Address
from trainctl.model.specs.checks import SecretReference
from trainctl.model.specs.image import Image
from trainctl.model.specs.job_spec import (
    CodeSpec,
    Compute,
    HostMount,
    JobSpec,
    JobWeights,
    SecretVersion,
)
from trainctl.model.specs.runtime import RuntimeSpec
from trainctl.operations.runs.reuse import run_identity

WEIGHTS = JobWeights(Address.parse("weights.sft-1"), "/models/base", "hf://a/b@main")
JOB = JobSpec(
    project="demo",
    cluster="lab",
    image=Image("repo/image:latest"),
    runtime=RuntimeSpec(("python train.py",), {"TOKEN": SecretReference("token"), "LR": "1"}),
    weights=(WEIGHTS,),
    code=CodeSpec(digest="sha256:c"),
    weight_pins={"weights.sft-1": "f" * 40},
)
RENAMED = {
    "weights": (replace(WEIGHTS, address=Address.parse("weights.tune-1")),),
    "weight_pins": {"weights.tune-1": "f" * 40},
}


def identity(
    digest: str | None = "sha256:i", loaded: tuple[str | None, ...] = (), **changed: Any
) -> str | None:
    """The identity of a run of the job with these changes."""
    return run_identity(replace(JOB, **changed), digest, loaded)


@pytest.mark.parametrize(
    "changed",
    [
        {"project": "other"},
        {"labels": {"a": "b"}, "priority": 3, "max_duration": "1h", "max_parallel": 2},
        {"image": Image("repo/image@sha256:i")},
        {"compute": Compute(memory="8GB", cpu_count=2)},
        {"code": CodeSpec("elsewhere", digest="sha256:c", files=3, bytes=4)},
        RENAMED,
    ],
)
def test_names_and_limits_are_not_part_of_it(changed: dict[str, Any]) -> None:
    assert identity(**changed) == identity()


@pytest.mark.parametrize(
    "changed",
    [
        {"image": None},
        {"cluster": "other"},
        {"compute": Compute(accelerator="H100:8")},
        {"compute": Compute(node_count=2)},
        {"runtime": replace(JOB.runtime, start_commands=("python train.py --fast",))},
        {"runtime": replace(JOB.runtime, environment_variables={"LR": "2"})},
        {"code": CodeSpec(digest="sha256:d")},
        {"weight_pins": {"weights.sft-1": "e" * 40}},
        {"weights": (replace(WEIGHTS, mount_location="/models/other"),)},
        {"weights": (replace(WEIGHTS, allow_patterns=("*.bin",)),)},
        {"mounts": (HostMount("/srv/data", "/data"),)},
        {"secrets": (SecretVersion("token", "2"),)},
        {"digest": "sha256:j"},
        {"loaded": ("sha256:parent checkpoint-1",)},
    ],
)
def test_inputs_of_the_result_are_part_of_it(changed: dict[str, Any]) -> None:
    assert identity(**changed) not in (None, identity())


@pytest.mark.parametrize(
    "unknown",
    [
        {"digest": None},
        {"code": CodeSpec()},
        {"weight_pins": {"weights.sft-1": None}},
        {"loaded": (None,)},
    ],
)
def test_it_is_unknown_if_an_input_is(unknown: dict[str, Any]) -> None:
    assert identity(**unknown) is None
