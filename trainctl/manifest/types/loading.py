"""Checkpoints that a job begins with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainctl.manifest.types.base import Name, Section, Text, wrong
from trainctl.manifest.types.weights import MountLocation

_NAMED = ("named", "baseten_named_checkpoint")


class CheckpointReference(Section):
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
            raise wrong(
                "a named checkpoint needs checkpoint_name and job_id",
                "Write for example {typ: named, job_id: sft, checkpoint_name: checkpoint-120}.",
                code="missing-key",
            )
        if self.typ not in _NAMED and self.checkpoint_name:
            raise wrong(
                "the latest checkpoint is not one of a name",
                "Write typ: named, or leave checkpoint_name out.",
                code="needless-key",
            )
        return self


def _latest() -> list[CheckpointReference]:
    return [CheckpointReference(typ="latest")]


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
