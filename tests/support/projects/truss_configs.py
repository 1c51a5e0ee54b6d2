# mypy: ignore-errors
"""Configs of the hosted service that cover every field of its SDK; needs the package truss.

``python truss_configs.py`` prints their dumps, ``tests/golden/truss/dumps.json``.
"""

from __future__ import annotations

import json

from truss.base.truss_config import DockerAuthType, WeightsAuth, WeightsAuthMethod
from truss_train import (
    AvailabilityModel,
    AWSAssumeRoleDockerAuth,
    AWSIAMDockerAuth,
    AWSOIDCDockerAuth,
    BasetenCheckpoint,
    CacheConfig,
    CheckpointingConfig,
    Compute,
    DockerAuth,
    GCPOIDCDockerAuth,
    GCPServiceAccountJSONDockerAuth,
    Image,
    LoadCheckpointConfig,
    LoopsCheckpoint,
    RegistrySecretDockerAuth,
    Runtime,
    SecretReference,
    TrainingJob,
    TrainingProject,
    WeightsSource,
    Workspace,
)
from truss_train.definitions import (
    InteractiveSession,
    InteractiveSessionAuthProvider,
    InteractiveSessionProvider,
    InteractiveSessionTrigger,
)

ROLE, REGION = "arn:aws:iam::123456789012:role/train", "us-west-2"
ACCOUNT = "train@acme.iam.gserviceaccount.com"
POOL = "projects/1/locations/global/workloadIdentityPools/p/providers/q"
RUN = ["/bin/sh -c 'chmod +x ./run.sh && ./run.sh'"]
PYTORCH = Image(base_image="pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime")


def minimal() -> TrainingProject:
    """Defaults everywhere, also of a CPU job."""
    job = TrainingJob(image=PYTORCH, runtime=Runtime(start_commands=["python train.py"]))
    return TrainingProject(name="minimal", job=job)


def cookbook() -> TrainingProject:
    """The usual form: two nodes, secrets, cache and checkpoints; free names."""
    runtime = Runtime(
        start_commands=RUN,
        environment_variables={
            "HF_TOKEN": SecretReference(name="hf_access_token"),
            "WANDB_API_KEY": SecretReference(name="wandb_api_key"),
            "HF_HOME": "/root/.cache/user_artifacts/hf_cache",
            "EMPTY": "",
            "LR": "1e-5",
            "FLAG": "true",
            "TEXT": 'a: "b" #c \\ \u00fc\U0001f600\t%',
        },
        cache_config=CacheConfig(enabled=True, require_cache_affinity=False),
        checkpointing_config=CheckpointingConfig(enabled=True, checkpoint_path="/tmp/checkpoints"),
    )
    return TrainingProject(
        name="LoRA GLM-4.6 - ML Cookbook",
        job=TrainingJob(
            image=Image(base_image="axolotlai/axolotl:main-20250811-py3.11-cu126-2.7.1"),
            compute=Compute(node_count=2, accelerator="H100:8"),
            runtime=runtime,
            weights=[
                WeightsSource(source="hf://Qwen/Qwen3-8B@main", mount_location="/app/models/base")
            ],
        ),
    )


def sources() -> list[WeightsSource]:
    """One for each scheme and method."""
    return [
        WeightsSource(
            source="s3://acme-data/train/",
            mount_location="/data/train",
            auth=WeightsAuth(
                auth_method=WeightsAuthMethod.AWS_OIDC,
                aws_oidc_role_arn=ROLE,
                aws_oidc_region=REGION,
            ),
            allow_patterns=["*.safetensors", "**/*.json", "tokenizer/"],
            ignore_patterns=["*.bin"],
        ),
        WeightsSource(
            source="s3://acme-eval",
            mount_location="/data/eval",
            auth=WeightsAuth(
                auth_method=WeightsAuthMethod.AWS_ASSUME_ROLE,
                aws_assume_role_arn=ROLE,
                aws_assume_role_region=REGION,
            ),
        ),
        WeightsSource(
            source="gs://acme-data/x",
            mount_location="/data/x",
            auth=WeightsAuth(
                auth_method=WeightsAuthMethod.GCP_OIDC,
                gcp_oidc_service_account=ACCOUNT,
                gcp_oidc_workload_id_provider=POOL,
            ),
        ),
        WeightsSource(
            source="r2://abc.models/x",
            mount_location="/models/x",
            auth=WeightsAuth(
                auth_method=WeightsAuthMethod.CUSTOM_SECRET, auth_secret_name="r2_key"
            ),
        ),
        WeightsSource(
            source="hf://acme/base@v1", mount_location="/models/base", auth_secret_name="hf_token"
        ),
        WeightsSource(source="azure://acme/data/x", mount_location="/data/azure"),
        WeightsSource(source="https://example.com/a.tar", mount_location="/data/a"),
        WeightsSource(source="cw://acme-models/x", mount_location="/models/cw"),
    ]


def everything() -> TrainingProject:
    """Each field with a value that isn't its default."""
    runtime = Runtime(
        start_commands=["pip install -r requirements.txt", "cat <<'E'\n  a\n\nE\n", "./run.sh"],
        cache_config=CacheConfig(
            enabled=True, enable_legacy_hf_mount=True, mount_base_path="/workspace/cache"
        ),
        checkpointing_config=CheckpointingConfig(
            enabled=True, checkpoint_path="/workspace/checkpoints", volume_size_gib=700
        ),
        load_checkpoint_config=LoadCheckpointConfig(
            enabled=True,
            checkpoints=[BasetenCheckpoint.from_latest_checkpoint(project_name="demo/all")],
            download_folder="/workspace/loaded",
        ),
    )
    job = TrainingJob(
        name="All of it",
        image=registry(
            DockerAuthType.REGISTRY_SECRET,
            registry_secret_docker_auth=RegistrySecretDockerAuth(
                secret_ref=SecretReference(name="ghcr")
            ),
        ),
        compute=Compute(
            node_count=4,
            cpu_count=16,
            memory="96Gi",
            accelerator="A100_40GB",
            availability_model=AvailabilityModel.SPOT,
        ),
        runtime=runtime,
        interactive_session=InteractiveSession(
            trigger=InteractiveSessionTrigger.ON_FAILURE,
            timeout_minutes=30,
            session_provider=InteractiveSessionProvider.SSH,
            auth_provider=InteractiveSessionAuthProvider.GITHUB,
        ),
        priority=-3,
        workspace=Workspace(
            workspace_root=".", external_dirs=["../shared"], exclude_dirs=["data", "out"]
        ),
        weights=sources(),
        enable_baseten_workdir=False,
    )
    return TrainingProject(name="demo/all", team_name="nlp", job=job)


def registry(method: DockerAuthType, **block: object) -> Image:
    """An image that needs a login."""
    auth = DockerAuth(auth_method=method, registry="ghcr.io", **block)
    return Image(base_image="ghcr.io/acme/train:1", docker_auth=auth)


def registries() -> dict[str, TrainingProject]:
    """One config for each other method."""
    key = SecretReference(name="key")
    images = [
        registry(
            DockerAuthType.AWS_IAM,
            aws_iam_docker_auth=AWSIAMDockerAuth(
                access_key_secret_ref=SecretReference(name="key-id"),
                secret_access_key_secret_ref=key,
            ),
        ),
        registry(
            DockerAuthType.AWS_OIDC,
            aws_oidc_docker_auth=AWSOIDCDockerAuth(role_arn=ROLE, region=REGION),
        ),
        registry(
            DockerAuthType.AWS_ASSUME_ROLE,
            aws_assume_role_docker_auth=AWSAssumeRoleDockerAuth(role_arn=ROLE, region=REGION),
        ),
        registry(
            DockerAuthType.GCP_OIDC,
            gcp_oidc_docker_auth=GCPOIDCDockerAuth(
                service_account=ACCOUNT, workload_identity_provider=POOL
            ),
        ),
        registry(
            DockerAuthType.GCP_SERVICE_ACCOUNT_JSON,
            gcp_service_account_json_docker_auth=GCPServiceAccountJSONDockerAuth(
                service_account_json_secret_ref=key
            ),
        ),
    ]
    runtime = Runtime(start_commands=RUN)
    return {
        image.docker_auth.auth_method.value: TrainingProject(
            name="registries", job=TrainingJob(image=image, runtime=runtime)
        )
        for image in images
    }


def loading(reference: object) -> TrainingProject:
    """A job that starts from a checkpoint of the service."""
    config = LoadCheckpointConfig(enabled=True, checkpoints=[reference])
    runtime = Runtime(start_commands=RUN, load_checkpoint_config=config)
    return TrainingProject(name="loading", job=TrainingJob(image=PYTORCH, runtime=runtime))


def legacy() -> TrainingProject:
    """Deprecated fields, and values that the SDK accepts without a meaning."""
    runtime = Runtime(start_commands=[" ", "./run.sh"], enable_cache=True)
    compute = Compute(node_count=1, cpu_count=0, accelerator="H200")
    job = TrainingJob(
        image=PYTORCH,
        compute=compute,
        runtime=runtime,
        interactive_session=InteractiveSession(),
    )
    return TrainingProject(name="\u65e5\u672c\u8a9e", job=job)


CONFIGS = {
    "minimal": minimal(),
    "cookbook": cookbook(),
    "everything": everything(),
    **registries(),
    "loops": loading(LoopsCheckpoint.from_checkpoint("r1", "step-10")),
    "named": loading(BasetenCheckpoint.from_named_checkpoint("checkpoint-14", "4q9g403")),
    "latest-job": loading(BasetenCheckpoint.from_latest_checkpoint(job_id="4q9g403")),
    "other-project": loading(BasetenCheckpoint.from_latest_checkpoint(project_name="other")),
    "legacy": legacy(),
}

if __name__ == "__main__":
    dumps = {
        name: {
            "project": project.model_dump(mode="json"),
            "job": project.job.model_dump(mode="json"),
        }
        for name, project in CONFIGS.items()
    }
    print(json.dumps(dumps, indent=1))
