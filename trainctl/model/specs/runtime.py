"""Commands of a job, with environment, caches and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Annotated, Literal

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.json_codec import OMIT_EMPTY
from trainctl.model.specs.checks import (
    TEXT_OR_OBJECT,
    CheckedSection,
    Count,
    DisplayName,
    Duration,
    MountLocation,
    SecretReference,
    Size,
    SomeTexts,
    Text,
    check,
    limits,
    listed,
    validation_error,
)

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
RESERVED_PREFIXES = ("BT_", "TRAINCTL_")
CACHE_DIRECTORIES = ("user_artifacts", "team_artifacts")
"""Directories of the project's and the team's training cache below ``mount_base_path``."""


def _variable(name: str) -> str:
    if re.fullmatch(VARIABLE, name) is None:
        raise validation_error(
            f"invalid name of an environment variable: {name!r}",
            "Use letters, digits and '_'; don't start with a digit.",
            code="invalid-variable-name",
        )
    if name.startswith(RESERVED_PREFIXES):
        raise validation_error(
            f"{name} is reserved: trainctl sets it",
            "Use a name that doesn't start with BT_ or TRAINCTL_.",
            code="reserved-variable",
        )
    return name


def _venv(path: str) -> str:
    if not path.startswith(("/", "~/")) or ".." in path.split("/"):
        raise validation_error(
            "expected an absolute path of a virtual environment on the host",
            "Use for example /opt/venvs/train or ~/venvs/train.",
            code="invalid-path",
        )
    return path.rstrip("/")


def _code_path(path: str) -> str:
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise validation_error(
            "expected a file in the code directory, as a relative path",
            "Use for example requirements.txt.",
            code="invalid-path",
        )
    return path.removeprefix("./")


CodePath = Annotated[Text, check(_code_path)]
VariableName = Annotated[str, check(_variable, pattern=f"^(?!BT_|TRAINCTL_){VARIABLE}$")]
VariableValue = Annotated[str | SecretReference, TEXT_OR_OBJECT]

_NAMED = ("named", "baseten_named_checkpoint")


@dataclass(frozen=True, slots=True)
class CheckpointReference(CheckedSection):
    """A checkpoint: the latest complete one of a project, job or run, or one by name."""

    typ: Literal["latest", "named", "best", "baseten_latest_checkpoint", "baseten_named_checkpoint"]
    """``latest``, ``named`` or ``best``; the other values are Baseten's names for the first two."""
    checkpoint_name: Text | None = None
    """With ``named``: name of its directory, for example ``checkpoint-120``."""
    job_id: Text | None = None
    """Job (name or address) or run (ID) that saved it; default: any of the project. In a sweep,
    the name of the sweep means the same combination."""
    project_name: DisplayName | None = None
    """Project; default: that of the job, or of ``job_id``."""
    force: bool = False
    """With ``named``: use it even if it is unfinished."""
    metric: Text | None = None
    """With ``best``: a result of the job, or ``JOB.KEY`` of its evaluations. The best of a sweep is
    that of all its jobs."""
    mode: Literal["min", "max"] = "min"
    """With ``metric``: whether the lowest or the highest is the best."""

    def check_keys(self, written: Set[str]) -> None:
        """Require a name and a job for a named checkpoint; refuse what the latest can't have."""
        if self.typ in _NAMED and not (self.checkpoint_name and self.job_id):
            raise validation_error(
                "a named checkpoint requires checkpoint_name and job_id",
                "Use for example {typ: named, job_id: sft, checkpoint_name: checkpoint-120}.",
                code="missing-key",
            )
        is_ranked = self.typ == "best"
        if bool(self.metric) != is_ranked or (is_ranked and not self.job_id):
            raise validation_error(
                "the best checkpoint requires job_id and metric, and only it has a metric",
                "Use for example {typ: best, job_id: sft, metric: val_loss}.",
                code="missing-key",
            )
        for key in ("checkpoint_name", "force") if self.typ not in _NAMED else ():
            if getattr(self, key):
                raise validation_error(
                    f"{key} can't be used with the latest checkpoint",
                    f"Use typ: named, or remove {key}.",
                    code="redundant-key",
                )


@dataclass(frozen=True, slots=True)
class LoadCheckpointConfig(CheckedSection):
    """Checkpoints to place in ``$BT_LOAD_CHECKPOINT_DIR/<job>/rank-<n>/<checkpoint>`` before the
    first command."""

    enabled: bool = False
    """Place checkpoints."""
    checkpoints: Annotated[tuple[CheckpointReference, ...], listed(least=1)] = field(
        default_factory=lambda: (CheckpointReference("latest"),)
    )
    """Checkpoints to place; default: the latest of this project, or none for its first run."""
    download_folder: MountLocation | None = None
    """Directory in ``$BT_LOAD_CHECKPOINT_DIR``; default: one chosen by trainctl."""


@dataclass(frozen=True, slots=True)
class CheckpointSelector:
    """A checkpoint of a project, job or run; ``name`` None means the newest.

    ``optional``: the run starts also without it. ``force``: it may be unfinished. ``metric``, as ``KEY:MODE``: the best
    one, which the plan chooses; ``job`` may be a sweep.
    """

    project: str
    job: str | None = None
    run: str | None = None
    name: str | None = None
    optional: bool = False
    force: bool = field(default=False, metadata=OMIT_EMPTY)
    metric: str | None = field(default=None, metadata=OMIT_EMPTY)

    @property
    def best_of(self) -> str:
        """Name of the choice in plans."""
        return f"{self.job} {self.metric}"


@dataclass(frozen=True, slots=True)
class LoadCheckpointSpec:
    """Checkpoints to start a run from, with references resolved."""

    enabled: bool = False
    download_folder: str | None = None
    checkpoints: tuple[CheckpointSelector, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheConfig(CheckedSection):
    """Training caches of a job."""

    enabled: bool = False
    """Mount the training cache of the project, and the one that all projects share."""
    enable_legacy_hf_mount: bool = False
    """Keep ``~/.cache/huggingface`` in the cache of the project."""
    require_cache_affinity: bool = True
    """Moving the job to a cluster without the project's cache is an error instead of a warning."""
    mount_base_path: MountLocation | None = None
    """Mount directory of the caches; default: one chosen by trainctl."""
    prepare_commands: SomeTexts | None = None
    """Shell commands that fill the project's cache before the job starts, in the job's
    environment. They run once per cache and command text; other runs wait."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse settings of a cache that is not enabled."""
        for name in ("enable_legacy_hf_mount", "prepare_commands"):
            if getattr(self, name) and not self.enabled:
                raise validation_error(
                    f"{name} requires the cache",
                    "Add enabled: true, or remove the key.",
                    code="cache-not-enabled",
                )


@dataclass(frozen=True, slots=True)
class CheckpointingConfig(CheckedSection):
    """Checkpoints that a job writes to ``$BT_CHECKPOINT_DIR``."""

    enabled: bool = False
    """Keep checkpoints."""
    checkpoint_path: MountLocation | None = None
    """Directory in ``$BT_CHECKPOINT_DIR``; default: one chosen by trainctl."""
    volume_size_gib: Count | None = None
    """Disk space for checkpoints in GiB: a node with less is not used, and a run that exceeds it is
    stopped."""


@dataclass(frozen=True, slots=True)
class Runtime(CheckedSection):
    """Commands and their environment."""

    start_commands: SomeTexts
    """Shell commands, run in order in one shell. ``${{ … }}`` becomes one quoted word."""
    environment_variables: Mapping[VariableName, VariableValue] = field(default_factory=dict)
    """Values by name; ``{secret: NAME}`` for a secret."""
    cache_config: CacheConfig = CacheConfig()
    """Training caches."""
    checkpointing_config: CheckpointingConfig = CheckpointingConfig()
    """Checkpoints."""
    venv: Annotated[str, check(_venv, pattern="^(/|~/)")] | None = None
    """Virtual environment of the host to activate: an absolute path or one below ``~/``."""
    requirements: CodePath | None = None
    """Requirements file, relative to the code; its packages are installed once per node, in a
    separate environment."""
    load_checkpoint_config: LoadCheckpointConfig | None = None
    """Checkpoints to start from."""
    engine: Literal["host", "podman", "docker", "apptainer"] | None = None
    """Container engine; default: the first one that works. ``host`` ignores the image and runs on
    the host."""
    shm_size: Size | None = None
    """Size limit of ``/dev/shm`` in a container, for example 64Gi; default: half of the node's
    memory."""
    devices: Annotated[
        tuple[Annotated[str, limits(pattern="^/dev/[A-Za-z0-9._/-]+$")], ...], listed()
    ] = field(default_factory=tuple, metadata=OMIT_EMPTY)
    """Devices of the host in a container, in addition to GPUs and ``/dev/infiniband``."""
    ulimits: Mapping[Annotated[str, limits(pattern="^[a-z]+$")], Annotated[int, limits(ge=-1)]] = (
        field(default_factory=dict)
    )
    """Resource limits in a container by name, for example ``nofile``; -1: unlimited."""
    gang_end: Literal["any", "leader", "all"] = "any"
    """With several nodes, the run completes when the commands of any rank, of rank 0, or of all
    ranks have exited with 0. A rank that fails always fails the run."""
    gang_end_grace: Duration = "5m"
    """Time that the other ranks have left then; afterwards they are stopped."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse two environments."""
        if self.venv is not None and self.requirements is not None:
            raise validation_error(
                "venv and requirements can't be used together",
                "Keep requirements to create an environment, or venv to use an existing one.",
                code="redundant-key",
            )

    @property
    def secret_environment(self) -> dict[str, str]:
        """Names of secrets by environment variable."""
        return {
            name: value.secret
            for name, value in self.environment_variables.items()
            if isinstance(value, SecretReference)
        }


@dataclass(frozen=True, slots=True)
class RuntimeSpec(Runtime):
    """Commands and their environment, with the references to checkpoints resolved."""

    start_commands: tuple[str, ...] = ()
    load_checkpoint_config: LoadCheckpointSpec | None = None  # type: ignore[assignment]  # resolved

    @property
    def loads(self) -> tuple[CheckpointSelector, ...]:
        """Checkpoints to start a run from."""
        config = self.load_checkpoint_config
        return config.checkpoints if config and config.enabled else ()
