"""A desired job, with defaults filled in and references resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.base.units import parse_duration, parse_size
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json

Duration = int | float | str
Size = int | str
"""As in the manifest; parse with ``parse_duration`` and ``parse_size``."""


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """Resources of a job, per node.

    ``accelerator`` is ``TYPE``, ``TYPE:COUNT`` or ``none``; None means all GPUs of the node.
    """

    node_count: int = 1
    cpu_count: int | None = None
    memory: str | None = None
    accelerator: str | None = None
    availability_model: str = "dedicated"

    @property
    def gpus(self) -> int | None:
        """Number of GPUs per node, None for all."""
        if self.accelerator == "none":
            return 0
        return int(self.accelerator.partition(":")[2] or 1) if self.accelerator else None

    @property
    def gpu_kind(self) -> str:
        """Type of accelerator such as ``H100``, empty for any."""
        return (self.accelerator or "").removeprefix("none").partition(":")[0]

    @property
    def memory_bytes(self) -> int | None:
        """Memory per node in bytes."""
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
    """Login to a registry; only the block of ``auth_method`` is set."""

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
        references = [
            *((key.access_key_secret_ref, key.secret_access_key_secret_ref) if key else ()),
            *((account.service_account_json_secret_ref,) if account else ()),
            *((login.secret_ref,) if login else ()),
        ]
        return tuple(sorted({reference.secret for reference in references}))


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The container image of a job."""

    base_image: str
    docker_auth: DockerAuthSpec | None = None


CACHE_DIRECTORIES = ("user_artifacts", "team_artifacts")
"""Directories of the project's and the team's training cache below ``mount_base_path``."""


@dataclass(frozen=True, slots=True)
class CacheConfigSpec:
    """Settings of the training caches in a job."""

    enabled: bool = False
    enable_legacy_hf_mount: bool = False
    require_cache_affinity: bool = True
    mount_base_path: str | None = None
    prepare_commands: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointingSpec:
    """Whether checkpoints are stored, and the directory that the job writes them to."""

    enabled: bool = False
    checkpoint_path: str | None = None
    volume_size_gib: int | None = None

    @property
    def volume_bytes(self) -> int | None:
        """The limit in bytes."""
        return self.volume_size_gib * 2**30 if self.volume_size_gib else None


@dataclass(frozen=True, slots=True)
class CheckpointSelector:
    """A checkpoint of a project, job or run; ``name`` None means the newest.

    ``optional``: the run starts also without it.
    """

    project: str
    job: str | None = None
    run: str | None = None
    name: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class LoadCheckpointSpec:
    """Checkpoints to start a run from."""

    enabled: bool = False
    download_folder: str | None = None
    checkpoints: tuple[CheckpointSelector, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """Commands of a job and their environment."""

    start_commands: tuple[str, ...] = ()
    environment_variables: Mapping[str, str | SecretRef] = field(default_factory=dict)
    cache_config: CacheConfigSpec = CacheConfigSpec()
    checkpointing_config: CheckpointingSpec = CheckpointingSpec()
    venv: str | None = None
    requirements: str | None = None
    load_checkpoint_config: LoadCheckpointSpec | None = None
    engine: str | None = None
    shm_size: Size | None = None
    devices: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    ulimits: Mapping[str, int] = field(default_factory=dict)
    gang_end: str = "any"
    gang_end_grace: Duration = "5m"

    @property
    def secret_environment(self) -> dict[str, str]:
        """Names of secrets by environment variable."""
        return {
            name: value.secret
            for name, value in self.environment_variables.items()
            if isinstance(value, SecretRef)
        }

    @property
    def loads(self) -> tuple[CheckpointSelector, ...]:
        """Checkpoints to start a run from."""
        config = self.load_checkpoint_config
        return config.checkpoints if config and config.enabled else ()


@dataclass(frozen=True, slots=True)
class JobWeights:
    """Weights of a job and their mount location."""

    address: Address
    mount_location: str = ""
    source: str = ""
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HostMountSpec:
    """A directory of the host to mount in the job."""

    host_path: str
    mount_location: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """Name and declared version of a secret that the job uses."""

    name: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixValue:
    """One value of a job's matrix combination, as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """Maximum number of attempts of a run and the delay between them."""

    max_attempts: int = 1
    delay: Duration = "10s"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """When a run keeps its place after its commands have ended, and how long."""

    trigger: str = "on_demand"
    timeout_minutes: float = 480


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """Source code directory of a job; a plan adds digest, files and bytes.

    ``external_dirs`` are added to it, ``exclude_dirs`` are not part of it.
    """

    path: str = "."
    external_dirs: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    exclude_dirs: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    digest: str | None = None
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A desired job; fields are in the order of plans.

    ``persisted_secrets`` are stored on the node's disk until the run starts. A plan adds ``weight_pins`` and, for a
    run based on an earlier run, ``rerun_of`` (its id) or ``resume_from`` (``latest``). ``name`` and ``project_name`` are
    set if they differ from the names in addresses. ``checkpoint_store``: URL and endpoint, if declared and used.
    """

    name: str | None = field(default=None, metadata=OMIT_EMPTY)
    project: str = ""
    project_name: str | None = field(default=None, metadata=OMIT_EMPTY)
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
    interactive_session: SessionSpec | None = field(default=None, metadata=OMIT_EMPTY)
    labels: Mapping[str, str] = field(default_factory=dict)
    code: CodeSpec = CodeSpec()
    weight_pins: Mapping[str, str | None] | None = field(default=None, metadata=OMIT_EMPTY)
    checkpoint_store: str | None = field(default=None, metadata=OMIT_EMPTY)
    rerun_of: str | None = field(default=None, metadata=OMIT_EMPTY)
    resume_from: str | None = field(default=None, metadata=OMIT_EMPTY)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> JobSpec:
        """Read the attributes of a job, with defaults for missing ones."""
        code = attributes.get("code")
        if isinstance(code, str):  # not planned yet
            attributes = {**attributes, "code": {"path": code}}
        return from_json(cls, attributes)

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the job."""
        attributes: dict[str, Any] = to_json(self)
        has_only_path = self.code == CodeSpec(self.code.path)
        return {**attributes, "code": self.code.path} if has_only_path else attributes

    @property
    def cluster_address(self) -> Address:
        """Address of its cluster."""
        return Address(Kind.CLUSTER, self.cluster)

    @property
    def in_container(self) -> bool:
        """Whether it runs in a container."""
        return self.image is not None and self.runtime.engine != "host"

    @property
    def mount_locations(self) -> list[str]:
        """Mount locations of its weights and directories."""
        return [
            *(item.mount_location for item in self.weights),
            *(mount.mount_location for mount in self.mounts),
        ]

    @property
    def max_duration_seconds(self) -> float | None:
        """Time limit of a run in seconds."""
        return None if self.max_duration is None else parse_duration(self.max_duration)
