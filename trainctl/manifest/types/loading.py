"""Checkpoints that a job begins with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field

from trainctl.manifest.types.base import Name, Section, Text
from trainctl.manifest.types.weights import MountLocation


class LatestCheckpoint(Section):
    """The newest complete checkpoint of a project, of a job, or of one run."""

    typ: Literal["latest", "baseten_latest_checkpoint"]
    """``latest``, or as the hosted service writes it."""
    project_name: Name | None = None
    """Of which project; the job's own, or that of ``job_id``, if it is left out."""
    job_id: Text | None = None
    """Of which job (its name or address), or of which run (its id); any of the project if it is left out."""


class NamedCheckpoint(Section):
    """One checkpoint by its name."""

    typ: Literal["named", "baseten_named_checkpoint"]
    """``named``, or as the hosted service writes it."""
    checkpoint_name: Text
    """The name of its directory, for example ``checkpoint-120``."""
    job_id: Text
    """Of which job (its name or address), or of which run (its id). Of several runs the newest that has it is meant."""
    project_name: Name | None = None
    """Of which project; the job's own, or that of ``job_id``, if it is left out."""


CheckpointReference = Annotated[LatestCheckpoint | NamedCheckpoint, Discriminator("typ")]


def _latest() -> list[CheckpointReference]:
    return [LatestCheckpoint(typ="latest")]


class LoadCheckpointConfig(Section):
    """Checkpoints that lie in ``$BT_LOAD_CHECKPOINT_DIR/<job>/rank-<n>/<checkpoint>`` before the first command."""

    enabled: bool = False
    """Whether any are placed."""
    checkpoints: Annotated[list[CheckpointReference], Field(min_length=1)] = Field(
        default_factory=_latest
    )
    """Which. The newest of this project if it is left out; the project's first run then finds the directory empty."""
    download_folder: MountLocation | None = None
    """The directory that ``$BT_LOAD_CHECKPOINT_DIR`` names; the default place if it is left out."""
