"""Base class of the sections that only a manifest has."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class ManifestSection(BaseModel):
    """A mapping with known keys; docstrings of fields are their descriptions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return itself, as it is immutable: pydantic copies defaults."""
        return self
