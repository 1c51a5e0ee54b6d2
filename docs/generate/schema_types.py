"""Types of fields as the reference writes them."""

from __future__ import annotations

from typing import Any

from trainctl.manifest.fields import TYPES

_NAMES = {
    "a list, each ": "list of ",
    **{words: name for name, words in TYPES.items()},
    "a list": "list",
    "a mapping": "mapping",
}


def type_name(words: str) -> str:
    """The name of a type that ``trainctl explain`` describes in words."""
    for old, new in _NAMES.items():
        words = words.replace(old, new)
    return words


def simplified(schema: Any) -> Any:
    """The schema with a form for each of several types, and null as a value like others."""
    if isinstance(schema, list):
        return [simplified(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: simplified(value) for key, value in schema.items()}
    types = found.get("type")
    if types == "null":
        return {"const": "null"}
    if not isinstance(types, list):
        return found
    common = {key: found.pop(key) for key in ("description", "default") if key in found}
    forms = [{"const": "null"} if one == "null" else {**found, "type": one} for one in types]
    return {**common, "anyOf": forms}
