"""Jobs and their compute resources."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from trainctl.manifest.types.base import ManifestSection
from trainctl.manifest.types.weights import JobWeightsEntry
from trainctl.model.specs.checks import (
    BoundedDuration,
    Count,
    DisplayName,
    Labels,
    Name,
    Text,
    validation_error,
)
from trainctl.model.specs.image import Image
from trainctl.model.specs.job_spec import Compute, HostMount, InteractiveSession, Retry
from trainctl.model.specs.resource import JobLifecycle
from trainctl.model.specs.runtime import Runtime


class CodeWorkspace(ManifestSection):
    """Code from several directories, with paths relative to the manifest."""

    workspace_root: Text | None = None
    """Directory with the source code, instead of ``code``."""
    external_dirs: list[Text] = Field(default_factory=list)
    """Directories outside of it to add to the code, each under its own name."""
    exclude_dirs: list[Text] = Field(default_factory=list)
    """Directories directly in it to leave out."""


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
    max_parallel: Count | None = None
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
