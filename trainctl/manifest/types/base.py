"""Base class and common types of all sections."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from trainctl.base.units import parse_duration, parse_size
from trainctl.model.address import NAME

TEXT = "in one word"
OBJECT = "in full"
"""Tags of values with two forms. They appear in pydantic's paths and must not equal a key."""


class ManifestSection(BaseModel):
    """A mapping with known keys; docstrings of fields are their descriptions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return itself, as it is immutable: pydantic copies defaults."""
        return self


def validation_error(summary: str, detail: str, *, code: str) -> PydanticCustomError:
    """Create the error to raise in a validator."""
    return PydanticCustomError(
        "manifest", "{summary}", {"summary": summary, "detail": detail, "code": code}
    )


def union_tag(value: Any) -> str:
    """Return the form of a value."""
    return TEXT if isinstance(value, str) else OBJECT


_SIZES = "Use for example 500GB, 2TB or 64Gi."


def _size(value: int | str) -> int | str:
    try:
        size = parse_size(value)
    except ValueError:
        raise validation_error("not a size", _SIZES, code="invalid-size") from None
    if size <= 0:
        raise validation_error("size must be positive", _SIZES, code="invalid-size")
    return value


def _non_empty(value: str) -> str:
    if not value.strip():
        raise validation_error(
            "value is empty", "Set a value, or remove the key.", code="empty-value"
        )
    return value


_DURATIONS = "Use for example 30s, 15m, 2h or 1d12h."


def _duration(value: int | float | str) -> int | float | str:
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise validation_error("not a duration", _DURATIONS, code="invalid-duration") from None
    if not 0 <= seconds <= _LONGEST:
        raise validation_error(
            "duration must be between 0 and ten years", _DURATIONS, code="invalid-duration"
        )
    return value


def _bounded_duration(value: int | float | str) -> int | float | str:
    if not parse_duration(value):
        raise validation_error(
            "duration must be positive",
            "Remove the key for no limit, or use for example 30s, 15m, 2h or 1d12h.",
            code="invalid-duration",
        )
    return value


_LONGEST = 10 * 366 * 86_400


def _display_name(name: str) -> str:
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise validation_error("invalid name", NAME_ADVICE, code="invalid-name")
    return name


LONGEST_NAME = 128
NAME_ADVICE = "Use printable text of at most 128 characters."
NAME_PATTERN = f"^{NAME.pattern}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A name in an address."""

DisplayName = Annotated[
    str,
    AfterValidator(_display_name),
    Field(json_schema_extra={"minLength": 1, "maxLength": LONGEST_NAME}),
]
"""A name as people write it; ``model.address.slug`` is the name in addresses."""

_AS_WRITTEN = {"pattern": f"^.{{1,{LONGEST_NAME}}}$"}
ProjectName = Annotated[str, Field(pattern=NAME_PATTERN, json_schema_extra=_AS_WRITTEN)]
"""A name of a project in addresses; in a file, a ``DisplayName``."""
JobName = Annotated[
    str, Field(pattern=rf'^{NAME.pattern}(\[".*"\])?$', json_schema_extra=_AS_WRITTEN)
]
"""A name of a job in addresses, for jobs of a matrix with the key in brackets; in a file, a ``DisplayName``."""

Size = Annotated[int | str, AfterValidator(_size)]
"""Bytes, as a number or as text such as 500GB or 64Gi."""

Duration = Annotated[int | float | str, AfterValidator(_duration)]
"""Seconds, as a number or as text such as 90s, 15m, 2h or 1d12h."""

BoundedDuration = Annotated[Duration, AfterValidator(_bounded_duration)]
"""A positive duration."""

Text = Annotated[str, AfterValidator(_non_empty), Field(json_schema_extra={"minLength": 1})]
"""Non-empty text."""

Labels = dict[str, str]


class SecretReference(ManifestSection):
    """A secret by name."""

    secret: Name
    """Name of a secret declared in ``secrets``."""


class Lifecycle(ManifestSection):
    """Lifecycle settings of a resource."""

    prevent_destroy: bool = False
    """Refuse plans that destroy or replace this resource. Kept in the state, so it also holds
    after the block is removed."""
    ignore_changes: list[Text] = Field(default_factory=list)
    """Attributes whose changes are ignored, for example ``compute``."""
