"""Secrets: where their values come from, never the values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainctl.manifest.types.base import Section, Text, wrong


class Secret(Section):
    """A value that jobs and sources refer to by name."""

    origin: Literal["env", "file"] = Field(alias="from")
    """Where it comes from: ``env``, a variable of the operator's environment, or ``file``."""
    name: Text | None = None
    """With ``env``: the variable's name; the secret's own if it is left out."""
    path: Text | None = None
    """With ``file``: the file's path, relative to the manifest and in its directory."""
    version: Text | int | None = None
    """Anything; changing it makes a rotation visible in the plan."""
    redact: bool = True
    """Whether the value is removed from everything shown. Values shorter than 8 characters need ``false``."""

    @model_validator(mode="after")
    def _source_fits_origin(self) -> Secret:
        if self.origin == "file" and self.path is None:
            raise wrong("'from: file' needs 'path'", "Add path: … beside it.", code="missing-key")
        other = "path" if self.origin == "env" else "name"
        if getattr(self, other) is not None:
            raise wrong(
                f"'from: {self.origin}' has no {other!r}", f"Remove {other!r}.", code="needless-key"
            )
        return self

    def source(self, own_name: str) -> str:
        """The variable's name or the file's path."""
        return self.path or self.name or own_name
