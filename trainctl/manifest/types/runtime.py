"""What runs in a job, and what it finds there: caches, checkpoints."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trainctl.manifest.types.base import (
    OBJECT,
    TEXT,
    ManifestSection,
    Name,
    SecretReference,
    Size,
    Text,
    union_tag,
    validation_error,
)
from trainctl.manifest.types.weights import MountLocation

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_PREFIXES = ("BT_", "TRAINCTL_")


def _variable(name: str) -> str:
    if _VARIABLE.fullmatch(name) is None:
        raise validation_error(
            f"{name!r} is not a name of an environment variable",
            "Write letters, digits and '_', not beginning with a digit.",
            code="invalid-variable-name",
        )
    if name.startswith(_RESERVED_PREFIXES):
        raise validation_error(
            f"{name} is set by trainctl",
            "Choose a name without BT_ or TRAINCTL_ in front.",
            code="reserved-variable",
        )
    return name


def _venv(path: str) -> str:
    if not path.startswith(("/", "~/")) or ".." in path.split("/"):
        raise validation_error(
            "this is no place of a virtual environment on the host",
            "Write an absolute directory, such as /opt/venvs/train or ~/venvs/train.",
            code="invalid-path",
        )
    return path.rstrip("/")


def _code_path(path: str) -> str:
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise validation_error(
            "expected a file of the code, relative to its directory",
            "Write for example requirements.txt.",
            code="invalid-path",
        )
    return path.removeprefix("./")


CodePath = Annotated[Text, AfterValidator(_code_path)]

VariableName = Annotated[
    str,
    AfterValidator(_variable),
    Field(json_schema_extra={"pattern": f"^(?!BT_|TRAINCTL_){_VARIABLE.pattern}$"}),
]
VariableValue = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[SecretReference, Tag(OBJECT)], Discriminator(union_tag)
]
Path = MountLocation


_NAMED = ("named", "baseten_named_checkpoint")


class CheckpointReference(ManifestSection):
    """The newest complete checkpoint of a project, of a job or of one run; or one by its name."""

    typ: Literal["latest", "named", "baseten_latest_checkpoint", "baseten_named_checkpoint"]
    """``latest`` or ``named``, or as the hosted service writes it."""
    checkpoint_name: Text | None = None
    """Of a named one: the name of its directory, for example ``checkpoint-120``."""
    job_id: Text | None = None
    """Of which job (its name or address; in a job of a matrix, the matrix's name means that job), or of which run (its id); any of the project if it is left out."""
    project_name: Name | None = None
    """Of which project; the job's own, or that of ``job_id``, if it is left out."""

    @model_validator(mode="after")
    def _named_or_not(self) -> CheckpointReference:
        if self.typ in _NAMED and not (self.checkpoint_name and self.job_id):
            raise validation_error(
                "a named checkpoint needs checkpoint_name and job_id",
                "Write for example {typ: named, job_id: sft, checkpoint_name: checkpoint-120}.",
                code="missing-key",
            )
        if self.typ not in _NAMED and self.checkpoint_name:
            raise validation_error(
                "the latest checkpoint is not one of a name",
                "Write typ: named, or leave checkpoint_name out.",
                code="redundant-key",
            )
        return self


def _latest_checkpoint() -> list[CheckpointReference]:
    return [CheckpointReference(typ="latest")]


class LoadCheckpointConfig(ManifestSection):
    """Checkpoints that lie in ``$BT_LOAD_CHECKPOINT_DIR/<job>/rank-<n>/<checkpoint>`` before the first command."""

    enabled: bool = False
    """Whether any are placed."""
    checkpoints: Annotated[list[CheckpointReference], Field(min_length=1)] = Field(
        default_factory=_latest_checkpoint
    )
    """Which. The newest of this project if it is left out; the project's first run then finds the directory empty."""
    download_folder: MountLocation | None = None
    """The directory that ``$BT_LOAD_CHECKPOINT_DIR`` names; the default place if it is left out."""


class CacheConfig(ManifestSection):
    """The training cache as the job finds it."""

    enabled: bool = False
    """Whether the job finds the training cache of its project and cluster, and the one that all projects there share."""
    enable_legacy_hf_mount: bool = False
    """Whether ``~/.cache/huggingface`` is the directory ``huggingface`` of the project's cache."""
    require_cache_affinity: bool = True
    """Whether moving the job to a cluster without its project's cache is an error; otherwise a warning."""
    mount_base_path: Path | None = None
    """The directory in which it appears; the default place if it is left out."""
    prepare_commands: Annotated[list[Text], Field(min_length=1)] | None = None
    """Shell commands that fill the project's cache before the job begins, with all that the job finds. They run once for
    each cache and text of the commands, not once a run or code; one run at a time, the others wait."""

    @model_validator(mode="after")
    def _nothing_without_cache(self) -> CacheConfig:
        for name in ("enable_legacy_hf_mount", "prepare_commands"):
            if getattr(self, name) and not self.enabled:
                raise validation_error(
                    f"{name} needs the cache",
                    "Add enabled: true, or leave it out.",
                    code="cache-not-enabled",
                )
        return self


class CheckpointingConfig(ManifestSection):
    """What becomes of what the job writes to ``$BT_CHECKPOINT_DIR``."""

    enabled: bool = False
    """Whether checkpoints are kept."""
    checkpoint_path: Path | None = None
    """The directory that ``$BT_CHECKPOINT_DIR`` names; the default place if it is left out."""
    volume_size_gib: Annotated[int, Field(ge=1)] | None = None
    """How much disk checkpoints may need, in GiB."""


class Runtime(ManifestSection):
    """What runs, with which environment."""

    start_commands: Annotated[list[Text], Field(min_length=1)]
    """Shell commands, one after another in one shell. ``${{ … }}`` becomes one quoted word."""
    environment_variables: dict[VariableName, VariableValue] = Field(default_factory=dict)
    """Values, or ``{secret: NAME}``."""
    cache_config: CacheConfig = CacheConfig()
    """The training cache."""
    checkpointing_config: CheckpointingConfig = CheckpointingConfig()
    """Checkpoints."""
    venv: (
        Annotated[str, AfterValidator(_venv), Field(json_schema_extra={"pattern": "^(/|~/)"})]
        | None
    ) = None
    """A virtual environment of the host that is active for the commands: an absolute directory, or one below ``~/``."""
    requirements: CodePath | None = None
    """A requirements file of the code: its packages are installed once on each node, into an environment of their own."""
    load_checkpoint_config: LoadCheckpointConfig | None = None
    """Checkpoints to begin with."""
    engine: Literal["host", "podman", "docker", "apptainer"] | None = None
    """What runs the job's image; whichever works if it is left out. ``host`` runs the job on the host itself although it names an image."""
    shm_size: Size | None = None
    """How large ``/dev/shm`` may grow in a container, for example 64Gi; half of the node's memory if it is left out."""

    @model_validator(mode="after")
    def _one_environment(self) -> Runtime:
        if self.venv is not None and self.requirements is not None:
            raise validation_error(
                "venv and requirements exclude each other",
                "Keep requirements for an environment that is built, venv for one that is there.",
                code="redundant-key",
            )
        return self
