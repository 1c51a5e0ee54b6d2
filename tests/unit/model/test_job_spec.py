"""Jobs as typed values, and their attributes."""

from __future__ import annotations

from pathlib import Path

from tests.support.cases import cases
from tests.support.projects.manifests import desired
from trainctl.model.address import Address, Kind
from trainctl.model.specs.checks import SecretReference
from trainctl.model.specs.job_spec import Compute, JobSpec

CASES = {case.id: case.values[0] for case in cases("desired/build")}


def test_nested_values_have_types(tmp_path: Path) -> None:
    state = desired(tmp_path, CASES["nested values of a job"]["manifest"])
    job = state.resources[Address.read("sft[seed=1]")].job_spec
    assert job.cluster_address == Address(Kind.CLUSTER, "lab")
    assert job.compute == Compute(memory="64Gi", accelerator="H100:8")
    assert (job.compute.gpus, job.compute.gpu_kind) == (8, "H100")
    assert job.compute.memory_bytes == 64 * 2**30
    assert job.runtime.environment_variables["WANDB_API_KEY"] == SecretReference("wandb")
    assert [str(weights.address) for weights in job.weights] == ["weights.qwen3", "weights.sft-0"]
    assert job.image is not None
    assert job.image.docker_auth is not None
    assert job.image.docker_auth.secrets == ("id", "key")
    assert job.max_duration_seconds == 7200
    assert job.runtime.loads[0].optional


def test_a_planned_job_keeps_its_code_and_pins() -> None:
    """They are left out if they are unknown."""
    code = {"path": ".", "digest": "sha256:a", "files": 1, "bytes": 0}
    added = {"code": code, "weight_pins": {}, "resume_from": "latest"}
    planned = {**JobSpec().to_attributes(), **added}
    job = JobSpec.from_attributes(planned)
    assert (job.code.digest, job.resume_from, job.rerun_of) == ("sha256:a", "latest", None)
    assert job.to_attributes() == planned
