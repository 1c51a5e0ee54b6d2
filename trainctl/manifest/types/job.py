"""Jobs and their compute resources."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from trainctl.manifest.types.base import (
    BoundedDuration,
    DisplayName,
    Duration,
    Labels,
    Lifecycle,
    ManifestSection,
    Name,
    Text,
    validation_error,
)
from trainctl.manifest.types.image import Image
from trainctl.manifest.types.runtime import Runtime
from trainctl.manifest.types.weights import JobWeightsEntry, MountLocation

RerunCause = Literal["config", "code", "weights"]


MEMORY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]|[KMGTPE]i)?")
NO_ACCELERATOR = "none"
ACCELERATOR = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?::([0-9]+))?")
KNOWN_ACCELERATORS = (
    *("B10", "T4", "L4", "A10G", "V100", "A100", "A100_40GB", "H100", "H200", "H100_40GB", "B200"),
    *("L40S", "RTX_PRO_6000", "B300", "GB300"),
)
"""Names used by Baseten, for suggestions only."""


def _memory(text: str) -> str:
    if MEMORY.fullmatch(text) is None:
        raise validation_error(
            "not an amount of memory",
            "Use a number with k, M, G, T, Ki, Mi, Gi or Ti, for example 64Gi or 64G.",
            code="invalid-size",
        )
    return text


def _accelerator(text: str) -> str:
    match = ACCELERATOR.fullmatch(text)
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


class Compute(ManifestSection):
    """Resources of a job, per node."""

    node_count: Annotated[int, Field(ge=1)] = 1
    """Number of nodes."""
    cpu_count: Annotated[int, Field(ge=1)] | None = None
    """Processors per node; default: all."""
    memory: (
        Annotated[
            str,
            AfterValidator(_memory),
            Field(json_schema_extra={"pattern": f"^{MEMORY.pattern}$"}),
        ]
        | None
    ) = None
    """Memory per node, for example 64Gi."""
    accelerator: (
        Annotated[
            str,
            AfterValidator(_accelerator),
            Field(json_schema_extra={"pattern": f"^{ACCELERATOR.pattern}$"}),
        ]
        | None
    ) = None
    """GPUs per node, as ``TYPE`` or ``TYPE:COUNT``, for example H100:8; ``none`` for a job
    without GPUs; default: all GPUs of the host."""
    availability_model: Literal["dedicated", "spot"] = "dedicated"
    """``dedicated`` nodes, or cheaper ``spot`` nodes that can be preempted."""


def _host_path(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not any(parts):
        raise validation_error(
            "expected an absolute directory on the host",
            "Use for example /data/imagenet.",
            code="invalid-path",
        )
    return "/" + "/".join(part for part in parts if part and part != ".")


_RERUN_ON: tuple[RerunCause, ...] = ("config",)


class HostMount(ManifestSection):
    """A directory of the host to mount in the job."""

    host_path: Annotated[
        Text, AfterValidator(_host_path), Field(json_schema_extra={"pattern": "^/"})
    ]
    """Absolute path on each node."""
    mount_location: MountLocation
    """Mount path in the job."""
    read_only: bool = True
    """Mount it read-only."""


class CodeWorkspace(ManifestSection):
    """Code from several directories, with paths relative to the manifest."""

    workspace_root: Text | None = None
    """Directory with the source code, instead of ``code``."""
    external_dirs: list[Text] = Field(default_factory=list)
    """Directories outside of it to add to the code, each under its own name."""
    exclude_dirs: list[Text] = Field(default_factory=list)
    """Directories directly in it to leave out."""


class JobLifecycle(Lifecycle):
    """Lifecycle settings of a job."""

    rerun_on: list[RerunCause] = Field(default_factory=lambda: list(_RERUN_ON))
    """Changes that make a job run again; by default ``config``."""


class Retry(ManifestSection):
    """Retries after a failed attempt."""

    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Maximum number of attempts, including the first. Each attempt finds the checkpoints of
    earlier ones."""
    delay: Duration = "10s"
    """Time before the next attempt."""


class InteractiveSession(ManifestSection):
    """Time for people to look at a run whose commands have ended. It keeps GPUs, mounts and files;
    enter it with ``trainctl ssh``."""

    trigger: Literal["on_startup", "on_failure", "on_demand"] = "on_demand"
    """``on_failure``: when the last attempt fails. ``on_startup``: always; the timeout counts from the
    start. ``on_demand``: after ``trainctl session extend``."""
    timeout_minutes: Annotated[float, Field(gt=0)] = 480
    """Time in minutes, within ``max_duration``."""


MatrixScalar = str | int | float | bool
MatrixValues = Annotated[list[MatrixScalar], Field(min_length=1)]
Values = Annotated[dict[str, MatrixScalar], Field(min_length=1)]


class Matrix(ManifestSection):
    """Lists of values by name. The job runs once for each combination; ``${{ matrix.NAME }}`` is
    its value."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, MatrixValues] = Field(init=False)

    include: list[Values] = Field(default_factory=list)
    """Values to add to each combination that they don't contradict; values that fit no combination
    make a new one."""
    exclude: list[Values] = Field(default_factory=list)
    """Combinations to leave out, before ``include`` is applied."""


class Job(ManifestSection):
    """A training job."""

    name: DisplayName | None = None
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
    weights: list[JobWeightsEntry] = Field(default_factory=list)
    """Names of declared weights, or sources."""
    mounts: list[HostMount] = Field(default_factory=list)
    """Host directories to mount."""
    runtime: Runtime
    """Commands and their environment."""
    matrix: Matrix | None = None
    """Make the job a sweep: one job for each combination of values."""
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of concurrent runs of a sweep per host; default: as many as fit."""
    depends_on: list[Text] = Field(default_factory=list)
    """Jobs whose latest runs must complete first, as ``job.NAME``; for a sweep, all its jobs."""
    priority: int = 0
    """Priority in the queue; higher values start first."""
    max_duration: BoundedDuration | None = None
    """Time limit of a run, including all attempts; afterwards it is stopped as FAILED."""
    retry: Retry = Retry()
    """Retries of failed runs."""
    interactive_session: InteractiveSession | None = None
    """Keep the place of runs that have ended, to look at them."""
    labels: Labels = Field(default_factory=dict)
    """Labels by name."""
    lifecycle: JobLifecycle = JobLifecycle()
    """Lifecycle settings."""

    @model_validator(mode="after")
    def _one_root(self) -> Job:
        if self.workspace.workspace_root is not None and "code" in self.model_fields_set:
            raise validation_error(
                "the code directory is set twice",
                "Remove 'code' or 'workspace.workspace_root'.",
                code="redundant-key",
            )
        return self
