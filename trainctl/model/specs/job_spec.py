"""A job as the manifest asks for it, with every default filled in and every reference resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.base.units import parse_duration, parse_size
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json

Duration = int | float | str
Size = int | str
"""As the manifest writes it: ``parse_duration`` and ``parse_size`` read it."""


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """What a job needs of each of its nodes. ``accelerator`` is ``TYPE`` or ``TYPE:COUNT``; None: all GPUs of the node."""

    node_count: int = 1
    cpu_count: int | None = None
    memory: str | None = None
    accelerator: str | None = None
    availability_model: str = "dedicated"

    @property
    def gpus(self) -> int | None:
        """GPUs of each node; None: all."""
        return int(self.accelerator.partition(":")[2] or 1) if self.accelerator else None

    @property
    def gpu_kind(self) -> str:
        """Kind of accelerator, ``H100``; empty: any."""
        return (self.accelerator or "").partition(":")[0]

    @property
    def memory_bytes(self) -> int | None:
        """Memory of each node, in bytes."""
        return parse_size(self.memory) if self.memory else None


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A declared secret, by name."""

    secret: str


@dataclass(frozen=True, slots=True)
class AwsIamDockerAuthSpec:
    """An AWS access key."""

    access_key_secret_ref: SecretRef
    secret_access_key_secret_ref: SecretRef


@dataclass(frozen=True, slots=True)
class AwsRoleDockerAuthSpec:
    """An AWS role."""

    role_arn: str
    region: str


@dataclass(frozen=True, slots=True)
class GcpOidcDockerAuthSpec:
    """A Google Cloud service account, by workload identity federation."""

    service_account: str
    workload_identity_provider: str


@dataclass(frozen=True, slots=True)
class GcpServiceAccountJsonDockerAuthSpec:
    """A Google Cloud service account, by its key."""

    service_account_json_secret_ref: SecretRef


@dataclass(frozen=True, slots=True)
class RegistrySecretDockerAuthSpec:
    """A user and a password."""

    secret_ref: SecretRef


@dataclass(frozen=True, slots=True)
class DockerAuthSpec:
    """Login to a registry; the block that goes with ``auth_method`` is set."""

    auth_method: str
    registry: str
    aws_iam_docker_auth: AwsIamDockerAuthSpec | None = None
    aws_oidc_docker_auth: AwsRoleDockerAuthSpec | None = None
    aws_assume_role_docker_auth: AwsRoleDockerAuthSpec | None = None
    gcp_oidc_docker_auth: GcpOidcDockerAuthSpec | None = None
    gcp_service_account_json_docker_auth: GcpServiceAccountJsonDockerAuthSpec | None = None
    registry_secret_docker_auth: RegistrySecretDockerAuthSpec | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets that it uses."""
        key, account = self.aws_iam_docker_auth, self.gcp_service_account_json_docker_auth
        login = self.registry_secret_docker_auth
        found = [
            *((key.access_key_secret_ref, key.secret_access_key_secret_ref) if key else ()),
            *((account.service_account_json_secret_ref,) if account else ()),
            *((login.secret_ref,) if login else ()),
        ]
        return tuple(sorted({reference.secret for reference in found}))


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The container image of a job."""

    base_image: str
    docker_auth: DockerAuthSpec | None = None


@dataclass(frozen=True, slots=True)
class CacheConfigSpec:
    """Training caches as the job finds them."""

    enabled: bool = False
    enable_legacy_hf_mount: bool = False
    require_cache_affinity: bool = True
    mount_base_path: str | None = None
    prepare_commands: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointingSpec:
    """Whether the job's checkpoints are kept, and the directory that it writes them to."""

    enabled: bool = False
    checkpoint_path: str | None = None
    volume_size_gib: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSelector:
    """Checkpoints of a project, of one of its jobs or of a run; ``name`` None: the newest.

    ``optional``: the run begins also if there is none.
    """

    project: str
    job: str | None = None
    run: str | None = None
    name: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class LoadCheckpointSpec:
    """Checkpoints that a run begins with."""

    enabled: bool = False
    download_folder: str | None = None
    checkpoints: tuple[CheckpointSelector, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """What runs, and in which environment."""

    start_commands: tuple[str, ...] = ()
    environment_variables: Mapping[str, str | SecretRef] = field(default_factory=dict)
    cache_config: CacheConfigSpec = CacheConfigSpec()
    checkpointing_config: CheckpointingSpec = CheckpointingSpec()
    venv: str | None = None
    requirements: str | None = None
    load_checkpoint_config: LoadCheckpointSpec | None = None
    engine: str | None = None
    shm_size: Size | None = None

    @property
    def secret_environment(self) -> dict[str, str]:
        """Names of secrets, by the variable that gets the value."""
        return {
            name: value.secret
            for name, value in self.environment_variables.items()
            if isinstance(value, SecretRef)
        }

    @property
    def loads(self) -> tuple[CheckpointSelector, ...]:
        """The checkpoints that a run begins with."""
        config = self.load_checkpoint_config
        return config.checkpoints if config and config.enabled else ()


@dataclass(frozen=True, slots=True)
class JobWeights:
    """Weights that a job uses, and where it finds them."""

    address: Address
    mount_location: str = ""
    source: str = ""
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HostMountSpec:
    """A directory of the host that the job finds."""

    host_path: str
    mount_location: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """A secret that the job uses, and its declared version."""

    name: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixValue:
    """A value of the combination that a job of a matrix is for, as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """How often a failed run is tried, and how long to wait before it is tried again."""

    max_attempts: int = 1
    delay: Duration = "10s"


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """The directory that a job ships; a plan adds its digest, files and bytes."""

    path: str = "."
    digest: str | None = None
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All that the manifest says of a job, in the order in which plans list it.

    ``persisted_secrets``: those that the run's node keeps on its disk until the run begins. A plan adds ``weight_pins``; of a run that
    begins from an earlier one ``rerun_of`` is that run's id, or ``resume_from`` is ``latest``.
    """

    project: str = ""
    cluster: str = ""
    image: ImageSpec | None = None
    compute: ComputeSpec = ComputeSpec()
    runtime: RuntimeSpec = RuntimeSpec()
    weights: tuple[JobWeights, ...] = ()
    mounts: tuple[HostMountSpec, ...] = ()
    secrets: tuple[SecretVersion, ...] = ()
    persisted_secrets: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    matrix: tuple[MatrixValue, ...] | None = None
    max_parallel: int | None = None
    depends_on: tuple[str, ...] | None = None
    priority: int = 0
    max_duration: Duration | None = None
    retry: RetrySpec = RetrySpec()
    labels: Mapping[str, str] = field(default_factory=dict)
    code: CodeSpec = CodeSpec()
    weight_pins: Mapping[str, str | None] | None = field(default=None, metadata=OMIT_EMPTY)
    rerun_of: str | None = field(default=None, metadata=OMIT_EMPTY)
    resume_from: str | None = field(default=None, metadata=OMIT_EMPTY)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> JobSpec:
        """Read the attributes of a job's resource; what they lack has its default."""
        code = attributes.get("code")
        if isinstance(code, str):  # before it is planned
            attributes = {**attributes, "code": {"path": code}}
        return from_json(cls, attributes)

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the job's resource."""
        found: dict[str, Any] = to_json(self)
        return found if self.code.digest else {**found, "code": self.code.path}

    @property
    def cluster_address(self) -> Address:
        """Address of the cluster that it runs on."""
        return Address(Kind.CLUSTER, self.cluster)

    @property
    def in_container(self) -> bool:
        """Whether it runs in a container."""
        return self.image is not None and self.runtime.engine != "host"

    @property
    def mount_locations(self) -> list[str]:
        """Where it finds its weights and mounts."""
        return [
            *(item.mount_location for item in self.weights),
            *(mount.mount_location for mount in self.mounts),
        ]

    @property
    def max_duration_seconds(self) -> float | None:
        """How long a run may last, in seconds."""
        return None if self.max_duration is None else parse_duration(self.max_duration)
