"""Sweeps: one job for each combination of values."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from trainctl.manifest.types.base import Section

MatrixValue = str | int | float | bool
MatrixValues = Annotated[list[MatrixValue], Field(min_length=1)]
Values = Annotated[dict[str, MatrixValue], Field(min_length=1)]


class Matrix(Section):
    """Lists of values by name: the job runs once for each combination, with ``${{ matrix.NAME }}`` as its values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, MatrixValues] = Field(init=False)

    include: list[Values] = Field(default_factory=list)
    """Values that are added to every combination of which they overwrite no value of a list above; those that fit none make
    one of their own."""
    exclude: list[Values] = Field(default_factory=list)
    """Combinations that hold all of these values are left out, before ``include`` is looked at."""
