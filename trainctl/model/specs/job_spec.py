"""Resources of a job, and the desired job with defaults filled in and references resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from trainctl.base.units import parse_accelerator, parse_duration, parse_size
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import OMIT_EMPTY, from_json, to_json
from trainctl.model.specs.checks import (
    CheckedSection,
    Count,
    Duration,
    Text,
    check,
    limits,
    validation_error,
)
from trainctl.model.specs.image import Image
from trainctl.model.specs.mounts import MountLocation
from trainctl.model.specs.runtime import RuntimeSpec

MEMORY = r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]|[KMGTPE]i)?"
NO_ACCELERATOR = "none"
ACCELERATOR = r"([A-Za-z][A-Za-z0-9_-]*)(?::([0-9]+))?"
KNOWN_ACCELERATORS = (
    *("B10", "T4", "L4", "A10G", "V100", "A100", "A100_40GB", "H100", "H200", "H100_40GB", "B200"),
    *("L40S", "RTX_PRO_6000", "B300", "GB300"),
)
"""Names used by Baseten, for suggestions only."""


def _memory(text: str) -> str:
    if re.fullmatch(MEMORY, text) is None:
        raise validation_error(
            "not an amount of memory",
            "Use a number with k, M, G, T, Ki, Mi, Gi or Ti, for example 64Gi or 64G.",
            code="invalid-size",
        )
    return text


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


@dataclass(frozen=True, slots=True)
class Compute(CheckedSection):
    """Resources of a job, per node."""

    node_count: Count = 1
    """Number of nodes."""
    cpu_count: Count | None = None
    """Processors per node; default: all."""
    memory: Annotated[str, check(_memory, pattern=f"^{MEMORY}$")] | None = None
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
    image: Image | None = None
    compute: Compute = Compute()
    runtime: RuntimeSpec = RuntimeSpec()
    weights: tuple[JobWeights, ...] = ()
    mounts: tuple[HostMount, ...] = ()
    secrets: tuple[SecretVersion, ...] = ()
    persisted_secrets: tuple[str, ...] = field(default=(), metadata=OMIT_EMPTY)
    matrix: tuple[MatrixValue, ...] | None = None
    max_parallel: int | None = None
    depends_on: tuple[str, ...] | None = None
    priority: int = 0
    max_duration: Duration | None = None
    retry: Retry = Retry()
    interactive_session: InteractiveSession | None = field(default=None, metadata=OMIT_EMPTY)
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
