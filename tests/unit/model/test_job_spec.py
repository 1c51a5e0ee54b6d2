"""Jobs as typed values, and their attributes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

from tests.support.projects.manifests import desired
from trainctl.manifest.types.base import ManifestSection
from trainctl.manifest.types.job import Job
from trainctl.manifest.types.runtime import Runtime
from trainctl.model.address import Address, Kind
from trainctl.model.specs.job_spec import ComputeSpec, JobSpec, RetrySpec, RuntimeSpec, SecretRef

FULL = """\
secrets: {wandb: {from: env}, id: {from: env}, key: {from: env}}
clusters: {lab: {provider: local, cache: {node: {dir: /nvme, size: 2TB}, max_rate: 1GB}}}
weights: {qwen3: {source: "s3://bucket/b", endpoint_url: "http://127.0.0.1:9000", allow_patterns: ["*.json"]}}
jobs:
  sft:
    image:
      base_image: pytorch/pytorch:2.7.0
      docker_auth:
        auth_method: AWS_IAM
        registry: ghcr.io
        aws_iam_docker_auth: {access_key_secret_ref: {secret: id}, secret_access_key_secret_ref: {secret: key}}
    compute: {accelerator: "H100:8", memory: 64Gi}
    weights: [qwen3, "hf://a/c"]
    mounts: [{host_path: /data, mount_location: data}]
    runtime:
      start_commands: [python train.py]
      environment_variables: {WANDB_API_KEY: {secret: wandb}, LR: "1"}
      cache_config: {enabled: true, prepare_commands: [make]}
      load_checkpoint_config: {enabled: true}
    matrix: {seed: [1, 2]}
    depends_on: []
    max_duration: 2h
    labels: {team: nlp}
"""


def test_attributes_are_what_the_specification_is_read_from(tmp_path: Path) -> None:
    """Reading and writing attributes changes nothing, for each kind of resource."""
    for resource in desired(tmp_path, FULL).resources.values():
        if resource.address.kind is Kind.JOB:
            assert resource.job_spec.to_attributes() == resource.attributes
        if resource.address.kind is Kind.WEIGHTS:
            assert resource.weights_spec.to_attributes() == resource.attributes
        if resource.address.kind is Kind.CACHE:
            assert resource.cache_spec.to_attributes() == resource.attributes


def test_nested_values_have_types(tmp_path: Path) -> None:
    """What the manifest says arrives as values with names."""
    job = desired(tmp_path, FULL).resources[Address.read("sft[seed=1]")].job_spec
    assert job.cluster_address == Address(Kind.CLUSTER, "lab")
    assert job.compute == ComputeSpec(memory="64Gi", accelerator="H100:8")
    assert (job.compute.gpus, job.compute.gpu_kind) == (8, "H100")
    assert job.compute.memory_bytes == 64 * 2**30
    assert job.runtime.environment_variables["WANDB_API_KEY"] == SecretRef("wandb")
    assert [str(one.address) for one in job.weights] == ["weights.qwen3", "weights.sft-0"]
    assert job.image is not None
    assert job.image.docker_auth is not None
    assert job.image.docker_auth.secrets == ("id", "key")
    assert job.max_duration_seconds == 7200
    assert job.runtime.loads[0].optional


def test_a_planned_job_keeps_its_code_and_pins() -> None:
    """What a plan adds is part of the attributes, and is left out where it isn't known."""
    code = {"path": ".", "digest": "sha256:a", "files": 1, "bytes": 0}
    planned = {
        **JobSpec().to_attributes(),
        "code": code,
        "weight_pins": {},
        "resume_from": "latest",
    }
    job = JobSpec.from_attributes(planned)
    assert (job.code.digest, job.resume_from, job.rerun_of) == ("sha256:a", "latest", None)
    assert job.to_attributes() == planned


def test_defaults_are_those_of_the_manifest() -> None:
    """Keys that the manifest and the specification share have the same default."""
    declared = Job(runtime=Runtime(start_commands=["true"]))
    pairs: list[tuple[ManifestSection, Any]] = [
        (declared, JobSpec()),
        (declared.compute, ComputeSpec()),
        (declared.retry, RetrySpec()),
        (declared.runtime, RuntimeSpec()),
        (declared.runtime.checkpointing_config, RuntimeSpec().checkpointing_config),
    ]
    for section, spec in pairs:
        shared = {field.name for field in fields(spec)} & set(type(section).model_fields)
        for key in shared - {"project", "cluster", "code"}:
            value, default = getattr(section, key), getattr(spec, key)
            if isinstance(value, str | int | float | NoneType):
                assert (key, value) == (key, default)
