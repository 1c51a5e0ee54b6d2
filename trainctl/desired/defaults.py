"""What an earlier release recorded of a job, completed with what this one knows in addition, so that an upgrade changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from trainctl.manifest.types.base import Section
from trainctl.manifest.types.job import Job


def completed(recorded: Mapping[str, Any], today: Mapping[str, Any]) -> dict[str, Any]:
    """A job's recorded attributes, in which a key that only ``today`` has holds today's value if that is null or its default.

    A null that only the record has is left out. Both are as they come from JSON.
    """
    return _mapping(recorded, today, Job)


def _mapping(
    recorded: Mapping[str, Any], today: Mapping[str, Any], section: type[Section] | None
) -> dict[str, Any]:
    known = {
        key: _value(value, today.get(key), _section_at(section, key))
        for key, value in recorded.items()
        if value is not None or key in today
    }
    new = {
        key: value
        for key, value in today.items()
        if key not in recorded and (value is None or value == _default(section, key))
    }
    return {**known, **new}


def _value(recorded: Any, today: Any, section: type[Section] | None) -> Any:
    if isinstance(recorded, Mapping) and isinstance(today, Mapping):
        return _mapping(recorded, today, section)
    if isinstance(recorded, list) and isinstance(today, list) and len(recorded) == len(today):
        return [_value(one, other, section) for one, other in zip(recorded, today, strict=True)]
    return recorded


def _default(section: type[Section] | None, key: str) -> Any:
    """A key's default as JSON; ``PydanticUndefined``, which equals no value, if it has none."""
    if section is None or key not in section.model_fields:
        return PydanticUndefined
    default = section.model_fields[key].get_default(call_default_factory=True)
    return default.model_dump() if isinstance(default, BaseModel) else default


def _section_at(section: type[Section] | None, key: str) -> type[Section] | None:
    if section is None or key not in section.model_fields:
        return None
    return _section_in(section.model_fields[key].annotation)


def _section_in(annotation: Any) -> type[Section] | None:
    """The section that a type is, may be, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
