"""Jobs: what is trained, with what, where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from trainctl.manifest.types.base import (
    BoundedDuration,
    Duration,
    Labels,
    Lifecycle,
    ManifestSection,
    Name,
    Text,
    validation_error,
)
from trainctl.manifest.types.compute import Compute
from trainctl.manifest.types.image import Image
from trainctl.manifest.types.runtime import Runtime
from trainctl.manifest.types.weights import JobWeightsEntry, MountLocation

RerunCause = Literal["config", "code", "weights"]


def _host_path(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not any(parts):
        raise validation_error(
            "expected an absolute directory of the host",
            "Write for example /data/imagenet.",
            code="invalid-path",
        )
    return "/" + "/".join(part for part in parts if part and part != ".")


_RERUN_ON: tuple[RerunCause, ...] = ("config",)


class HostMount(ManifestSection):
    """A directory of the host that the job finds."""

    host_path: Annotated[
        Text, AfterValidator(_host_path), Field(json_schema_extra={"pattern": "^/"})
    ]
    """The directory on each of its nodes: an absolute path."""
    mount_location: MountLocation
    """Where the job finds it."""
    read_only: bool = True
    """Whether the job can't write to it."""


class JobLifecycle(Lifecycle):
    """How a job answers to changes."""

    rerun_on: list[RerunCause] = Field(default_factory=lambda: list(_RERUN_ON))
    """A change of which makes an ended job run again."""


class Retry(ManifestSection):
    """What becomes of a job whose command fails."""

    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often it is tried, the first time included. Each attempt finds the checkpoints of those before it."""
    delay: Duration = "10s"
    """How long to wait before it is tried again."""


MatrixScalar = str | int | float | bool
MatrixValues = Annotated[list[MatrixScalar], Field(min_length=1)]
Values = Annotated[dict[str, MatrixScalar], Field(min_length=1)]


class Matrix(ManifestSection):
    """Lists of values by name: the job runs once for each combination, with ``${{ matrix.NAME }}`` as its values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, MatrixValues] = Field(init=False)

    include: list[Values] = Field(default_factory=list)
    """Values that are added to every combination of which they overwrite no value of a list above; those that fit none make
    one of their own."""
    exclude: list[Values] = Field(default_factory=list)
    """Combinations that hold all of these values are left out, before ``include`` is looked at."""


class Job(ManifestSection):
    """One training job."""

    project: Name | None = None
    """The project it belongs to; may be left out where there is only one."""
    cluster: Name | None = None
    """The cluster it runs on; may be left out where there is only one."""
    code: Text = "."
    """The directory that is shipped, relative to the manifest."""
    image: Image | None = None
    """The container image it runs in; on the host itself if it is left out."""
    compute: Compute = Compute()
    """What it asks of each node."""
    weights: list[JobWeightsEntry] = Field(default_factory=list)
    """Names of declared weights, or sources written in place."""
    mounts: list[HostMount] = Field(default_factory=list)
    """Directories of its hosts that it finds, read-only unless they say otherwise."""
    runtime: Runtime
    """What runs."""
    matrix: Matrix | None = None
    """Makes it a sweep: one job for each combination of values."""
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    """How many runs of a sweep go on at once on one host; as many as there is room for if it is left out."""
    depends_on: list[Text] = Field(default_factory=list)
    """Jobs whose newest runs have to complete before it starts: ``job.NAME``, which means all jobs of a sweep."""
    priority: int = 0
    """Who goes first where several wait: the higher."""
    max_duration: BoundedDuration | None = None
    """How long a run may last from its first command on, all attempts together; then it is ended as FAILED."""
    retry: Retry = Retry()
    """Whether and how a failed run is tried again."""
    labels: Labels = Field(default_factory=dict)
    """Free text by name, for people and policies."""
    lifecycle: JobLifecycle = JobLifecycle()
    """How it answers to changes."""
