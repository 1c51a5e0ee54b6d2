"""Jobs: as a manifest has them, and as desired, with defaults filled in and references resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.units import parse_accelerator, parse_duration, parse_size
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json
from trainctl.model.specs.checks import (
    OTHERS,
    BoundedDuration,
    CheckedSection,
    Count,
    DisplayName,
    Duration,
    JobLifecycle,
    Labels,
    MountLocation,
    Name,
    Text,
    Texts,
    check,
    limits,
    listed,
    named,
    require,
    validation_error,
)
from trainctl.model.specs.image import Image
from trainctl.model.specs.runtime import Runtime, RuntimeSpec
from trainctl.model.specs.weights import JobWeightsEntry

IN_PLACE = {"in_place": True}
"""Field metadata: a changed value needs no new run."""
_OPTIONAL_IN_PLACE = {**OMIT_EMPTY, **IN_PLACE}
MEMORY = r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]|[KMGTPE]i)?"
NO_ACCELERATOR = "none"
ACCELERATOR = r"(?![0-9]{1,3}(?:[xX:]|$))([A-Za-z0-9][A-Za-z0-9._-]*)(?::([0-9]+))?"
"""A type may begin with a digit, as 3090 and 1g.10gb do; 8, 8:1 and 8xH100 are mistakes."""
KNOWN_ACCELERATORS = (
    *("B10", "T4", "L4", "A10G", "V100", "A100", "A100_40GB", "H100", "H200", "H100_40GB", "B200"),
    *("L40S", "RTX_PRO_6000", "B300", "GB300"),
)
"""Names used by Baseten, for suggestions only."""


def _accelerator(text: str) -> str:
    match = re.fullmatch(ACCELERATOR, text)
    if match is None:
        raise validation_error(
            "not TYPE or TYPE:COUNT",
            "Use for example H100 or H100:8.",
            code="invalid-accelerator",
        )
    if match[2] is None:
        return text
    if int(match[2]) == 0:
        return NO_ACCELERATOR
    if len(match[2]) > 4:
        raise validation_error(
            "the number of accelerators must be at most 9999",
            "Use for example H100:8.",
            code="invalid-accelerator",
        )
    return match[1] if int(match[2]) == 1 else f"{match[1]}:{int(match[2])}"


def _host_path(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not any(parts):
        raise validation_error(
            "expected an absolute directory on the host",
            "Use for example /data/imagenet.",
            code="invalid-path",
        )
    return "/" + "/".join(part for part in parts if part and part != ".")


Memory = Annotated[
    str,
    require(
        lambda text: re.fullmatch(MEMORY, text),
        "not an amount of memory",
        "Use a number with k, M, G, T, Ki, Mi, Gi or Ti, for example 64Gi or 64G.",
        "invalid-size",
        pattern=f"^{MEMORY}$",
    ),
]


@dataclass(frozen=True, slots=True)
class Compute(CheckedSection):
    """Resources of a job, per node."""

    node_count: Count = 1
    """Number of nodes."""
    cpu_count: Count | None = None
    """Processors per node; default: all."""
    memory: Memory | None = None
    """Memory per node, for example 64Gi."""
    accelerator: Annotated[str, check(_accelerator, pattern=f"^{ACCELERATOR}$")] | None = None
    """GPUs per node, as ``TYPE`` or ``TYPE:COUNT``, for example H100:8; ``none`` for a job
    without GPUs; default: all GPUs of the host."""
    availability_model: Literal["dedicated", "spot"] = "dedicated"
    """``dedicated`` nodes, or cheaper ``spot`` nodes that can be preempted."""

    @property
    def gpus(self) -> int | None:
        """Number of GPUs per node, None for all."""
        return parse_accelerator(self.accelerator)[1]

    @property
    def gpu_kind(self) -> str:
        """Type of accelerator such as ``H100``, empty for any."""
        return parse_accelerator(self.accelerator)[0]

    @property
    def memory_bytes(self) -> int | None:
        """Memory per node in bytes."""
        return parse_size(self.memory) if self.memory else None


@dataclass(frozen=True, slots=True)
class HostMount(CheckedSection):
    """A directory of the host to mount in the job."""

    host_path: Annotated[Text, check(_host_path, pattern="^/")]
    """Absolute path on each node."""
    mount_location: MountLocation
    """Mount path in the job."""
    read_only: bool = True
    """Mount it read-only."""


@dataclass(frozen=True, slots=True)
class Retry(CheckedSection):
    """Retries after a failed attempt."""

    max_attempts: Annotated[int, limits(ge=1, le=1000)] = 1
    """Maximum number of attempts, including the first. Each attempt finds the checkpoints of
    earlier ones."""
    delay: Duration = "10s"
    """Time before the next attempt."""


@dataclass(frozen=True, slots=True)
class InteractiveSession(CheckedSection):
    """Time for people to look at a run whose commands have ended. It keeps GPUs, mounts and files;
    enter it with ``trainctl ssh``."""

    trigger: Literal["on_startup", "on_failure", "on_demand"] = "on_demand"
    """``on_failure``: when the last attempt fails. ``on_startup``: always; the timeout counts from the
    start. ``on_demand``: after ``trainctl session extend``."""
    timeout_minutes: Annotated[float, limits(gt=0)] = 480
    """Time in minutes, within ``max_duration``."""


@dataclass(frozen=True, slots=True)
class ForEachCheckpoint(CheckedSection):
    """Run the commands once for each complete checkpoint of another job, on the host that has it and
    one after the other. The checkpoint is in ``$BT_LOAD_CHECKPOINT_DIR``."""

    job: Text
    """Job (name or address) that saves the checkpoints. In a sweep, the name of a sweep means the
    same combination."""
    every: Count = 1
    """Only each so many checkpoints."""
    newest_only: bool = False
    """Skip checkpoints for which a newer one is complete."""


@dataclass(frozen=True, slots=True)
class JobWeights:
    """Weights of a job and their mount location."""

    address: Address
    mount_location: str = ""
    source: str = ""
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None


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


MatrixScalar = str | int | float | bool
MatrixValues = Annotated[tuple[MatrixScalar, ...], listed(least=1)]
Values = Annotated[dict[str, MatrixScalar], limits(min_length=1)]


@dataclass(frozen=True, slots=True)
class Matrix(CheckedSection):
    """Lists of values by name. The job runs once for each combination; ``${{ matrix.NAME }}`` is
    its value."""

    include: Annotated[tuple[Values, ...], listed()] = field(default_factory=tuple)
    """Values to add to each combination that they don't contradict; values that fit no combination
    make a new one."""
    exclude: Annotated[tuple[Values, ...], listed()] = field(default_factory=tuple)
    """Combinations to leave out, before ``include`` is applied."""
    lists: dict[str, MatrixValues] = field(default_factory=dict, metadata=named(OTHERS))
    """The lists of values by name."""


@dataclass(frozen=True, slots=True)
class CodeWorkspace(CheckedSection):
    """Code from several directories, with paths relative to the manifest."""

    workspace_root: Text | None = None
    """Directory with the source code, instead of ``code``."""
    external_dirs: Texts = field(default_factory=tuple)
    """Directories outside of it to add to the code, each under its own name."""
    exclude_dirs: Texts = field(default_factory=tuple)
    """Directories directly in it to leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(CheckedSection):
    """A training job."""

    name: DisplayName | None = field(default=None, metadata=_OPTIONAL_IN_PLACE)
    """Name as people write it; default: that of the section."""
    project: DisplayName | None = None
    """Project; optional if there is only one."""
    cluster: Name | None = None
    """Cluster; optional if there is only one."""
    code: Text = "."
    """Directory with the source code, relative to the manifest, with its git submodules."""
    workspace: CodeWorkspace = CodeWorkspace()
    """Code from several directories."""
    image: Image | None = None
    """Container image; default: run on the host."""
    compute: Compute = Compute()
    """Resources per node."""
    weights: Annotated[tuple[JobWeightsEntry, ...], listed()] = field(default_factory=tuple)
    """Names of declared weights, or sources."""
    mounts: Annotated[tuple[HostMount, ...], listed()] = field(default_factory=tuple)
    """Host directories to mount."""
    runtime: Runtime
    """Commands and their environment."""
    matrix: Matrix | None = None
    """Make the job a sweep: one job for each combination of values."""
    max_parallel: Count | None = field(default=None, metadata=IN_PLACE)
    """Maximum number of concurrent runs of a sweep per host; default: as many as fit."""
    depends_on: Texts = field(default_factory=tuple)
    """Jobs whose latest runs must complete first, as ``job.NAME``; for a sweep, all its jobs."""
    for_each_checkpoint: ForEachCheckpoint | None = field(default=None, metadata=OMIT_EMPTY)
    """Run once for each complete checkpoint of another job."""
    priority: int = field(default=0, metadata=IN_PLACE)
    """Priority in the queue; higher values start first."""
    max_duration: BoundedDuration | None = field(default=None, metadata=IN_PLACE)
    """Time limit of a run, including all attempts; afterwards it is stopped as FAILED."""
    retry: Retry = field(default=Retry(), metadata=IN_PLACE)
    """Retries of failed runs."""
    interactive_session: InteractiveSession | None = field(
        default=None, metadata=_OPTIONAL_IN_PLACE
    )
    """Keep the place of runs that have ended, to look at them."""
    labels: Labels = field(default_factory=dict, metadata=IN_PLACE)
    """Labels by name."""
    lifecycle: JobLifecycle = JobLifecycle()
    """Lifecycle settings."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse two directories of source code, and what runs for each checkpoint can't have."""
        if self.workspace.workspace_root is not None and "code" in written:
            raise validation_error(
                "the code directory is set twice",
                "Remove 'code' or 'workspace.workspace_root'.",
                code="redundant-key",
            )
        runtime, nodes = self.runtime, self.compute.node_count
        if self.for_each_checkpoint and (
            nodes > 1 or self.interactive_session or runtime.load_checkpoint_config
        ):
            raise validation_error(
                "for_each_checkpoint excludes several nodes, interactive_session and load_checkpoint_config",
                "Remove one of them.",
                code="redundant-key",
            )


_OTHERS = ""
_PLAN_ORDER = (
    *("name", "project", "project_name", "cluster", "image", "compute", "runtime", "weights"),
    *("mounts", "secrets", "persisted_secrets", _OTHERS),
    *("code", "weight_pins", "checkpoint_pins", "checkpoint_store", "rerun_of", "resume_from"),
)
_PLACES = {name: place for place, name in enumerate(_PLAN_ORDER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Job):
    """A desired job: defaults are filled in and references resolved.

    ``persisted_secrets`` are stored on the node's disk until the run starts. A plan adds ``weight_pins`` and, for a
    run based on an earlier run, ``rerun_of`` (its id) or ``resume_from`` (``latest``, or RUN/CHECKPOINT).
    ``checkpoint_pins``: the best checkpoints that it loads, as RUN/CHECKPOINT. ``name`` and ``project_name`` are
    set if they differ from the names in addresses. ``checkpoint_store``: URL and endpoint, if declared and used.
    """

    project: str = ""
    cluster: str = ""
    code: CodeSpec = CodeSpec()  # type: ignore[assignment]  # resolved, as the next three
    weights: tuple[JobWeights, ...] = ()  # type: ignore[assignment]
    runtime: RuntimeSpec = RuntimeSpec()
    matrix: tuple[MatrixValue, ...] | None = field(default=None, metadata=IN_PLACE)  # type: ignore[assignment]
    depends_on: tuple[str, ...] | None = field(default=None, metadata=IN_PLACE)  # type: ignore[assignment]
    project_name: str | None = field(default=None, metadata=OMIT_EMPTY)
    secrets: tuple[SecretVersion, ...] = ()
    persisted_secrets: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    weight_pins: Mapping[str, str | None] | None = field(default=None, metadata=OMIT_EMPTY)
    checkpoint_pins: Mapping[str, str] | None = field(default=None, metadata=OMIT_EMPTY)
    checkpoint_store: str | None = field(default=None, metadata=_OPTIONAL_IN_PLACE)
    rerun_of: str | None = field(default=None, metadata=OMIT_EMPTY)
    resume_from: str | None = field(default=None, metadata=OMIT_EMPTY)
    workspace: CodeWorkspace = field(default=CodeWorkspace(), init=False, compare=False)
    lifecycle: JobLifecycle = field(default=JobLifecycle(), init=False, compare=False)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> JobSpec:
        """Read the attributes of a job, with defaults for missing ones."""
        code = attributes.get("code")
        if isinstance(code, str):  # not planned yet
            attributes = {**attributes, "code": {"path": code}}
        return from_json(cls, attributes)

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the job, in the order of plans."""
        attributes: dict[str, Any] = to_json(self)
        if self.code == CodeSpec(self.code.path):
            attributes["code"] = self.code.path
        names = sorted(attributes, key=lambda name: _PLACES.get(name, _PLACES[_OTHERS]))
        return {name: attributes[name] for name in names}

    @property
    def cluster_address(self) -> Address:
        """Address of its cluster."""
        return Address(Kind.CLUSTER, self.cluster)

    @property
    def followed_job(self) -> Address | None:
        """Address of the job for each of whose checkpoints it runs."""
        section = self.for_each_checkpoint
        return Address.parse(section.job) if section else None

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
        """Time limit of a run in seconds; a job for each checkpoint has one of its evaluations."""
        if self.max_duration is None or self.for_each_checkpoint is not None:
            return None
        return parse_duration(self.max_duration)
