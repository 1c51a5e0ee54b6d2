"""Identities of runs: all inputs of the result, other runs included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.projects.plans import at, run_record
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.run import RunRecord, RunStatus
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
from trainctl.model.specs.runtime import CheckpointSelector, LoadCheckpointSpec, RuntimeSpec
from trainctl.operations.runs.reuse import may_reuse, run_identities, run_identity
from trainctl.plan.values import AffectedRun, Change, Plan

DONE = RunStatus.COMPLETED


def change(
    name: str, *runs: RunRecord, action: Action = Action.CREATE, load: Any = None, **job: Any
) -> Change:
    """A change of a job on the host, whose earlier runs are these."""
    config = LoadCheckpointSpec(True, None, (load,)) if load else None
    spec = JobSpec(
        project="demo",
        cluster="lab",
        runtime=RuntimeSpec((f"python {name}.py",), load_checkpoint_config=config),
        code=CodeSpec(digest="sha256:c"),
        **job,
    )
    outputs = {"runs": [run.to_json() for run in runs]}
    return Change(at(f"job.{name}"), action, "local", after=spec.to_attributes(), outputs=outputs)


def identity(of: str, *changes: Change) -> str | None:
    """The identity of the new run of a job."""
    return run_identities(Plan("", 0, "", changes), State())[at(f"job.{of}")]


OF_SFT = CheckpointSelector("demo", "job.sft")


def test_a_run_depends_on_the_runs_that_it_loads() -> None:
    """Whether they start now or completed before; a run that failed gives unknown checkpoints."""
    sft, evaluation = change("sft"), change("eval", load=OF_SFT)
    first = identity("sft", sft)
    expected = identity("eval", sft, evaluation)

    def with_recorded(status: RunStatus, recorded: str | None) -> str | None:
        run = run_record(1, status, identity=recorded)
        return identity("eval", change("sft", run, action=Action.NOOP), evaluation)

    assert None not in (first, expected)
    assert with_recorded(DONE, first) == expected
    assert with_recorded(DONE, "sha256:other") not in (None, expected)
    assert with_recorded(RunStatus.FAILED, first) is None
    assert with_recorded(DONE, None) is None
    assert identity("eval", evaluation) is None


@pytest.mark.parametrize(
    "load", [CheckpointSelector("demo", "job.eval"), CheckpointSelector("demo")]
)
def test_what_its_own_or_unnamed_runs_left_is_unknown(load: CheckpointSelector) -> None:
    """Such a run has no identity; one that loads from a named run has."""
    assert identity("eval", change("eval", load=load)) is None
    assert identity("eval", change("eval", load=CheckpointSelector("demo", run="abc"))) is not None


def test_a_resumed_run_is_equal_if_the_run_before_was() -> None:
    """Also after a machine was lost; a repeated run has the identity of the first."""
    expected = identity("sft", change("sft"))
    same, other = (
        run_record(number, RunStatus.LOST, identity=of)
        for number, of in enumerate((expected, "sha256:other"), 1)
    )

    def resumed(*runs: RunRecord) -> str | None:
        return identity("sft", change("sft", *runs, action=Action.REPLACE, resume_from="latest"))

    assert resumed(other, same) == expected
    assert resumed(same, other) is None
    repeated = change("sft", other, same, action=Action.REPLACE, rerun_of=other.id)
    assert identity("sft", repeated) == "sha256:other"


def test_a_run_that_continues_or_stops_another_is_not_replaced_by_an_equal_one() -> None:
    sft = change("sft")
    stops = AffectedRun("abc", 1, None, ranks=1)
    others = [replace(sft, stops=stops), replace(sft, resumes="key")]
    others += [change("sft", rerun_of="abc"), change("sft", resume_from="latest")]
    assert [may_reuse(each) for each in (sft, *others)] == [True, False, False, False, False]


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


def identity_of(
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
    assert identity_of(**changed) == identity_of()


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
    assert identity_of(**changed) not in (None, identity_of())


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
    assert identity_of(**unknown) is None
