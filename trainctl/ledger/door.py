"""The door: nothing enters the log but through redaction by value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.errors import Forbidden

Redact = Callable[[str], str]

_STRUCTURE = (
    "id",
    "type",
    "lineage",
    "address",
    "intent",
    "intents",
    "key",
    "plan",
    "action",
    "provider",
)
_MUTE = frozenset({int, float, bool, type(None)})
_RECORDED = ("provider", "depends_on", "key")
_text = json.JSONEncoder(ensure_ascii=False, default=dict).encode


def admit(entry: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """The entry with every secret value masked. Forbidden if a name that makes up the structure contains one."""
    text = _text(entry)
    if "\\" not in text and redact(text) == text:
        # Nothing is escaped, so each string stands there as it is: none holds a secret, and one look was enough.
        return dict(json.loads(text))
    clean: dict[str, Any] = _masked(entry, redact)
    _check(entry, clean, _STRUCTURE)
    recorded = entry.get("recorded")
    if recorded is not None:
        _check(recorded, clean.get("recorded"), _RECORDED)
    return clean


def _masked(value: Any, redact: Redact) -> Any:
    # Nearly everything is of one of these very types, and asking for a type is cheaper than for a kind of it.
    kind = type(value)
    if kind is str:
        return redact(value)
    if kind in _MUTE:
        return value
    if isinstance(value, str):
        return redact(value)
    if kind is dict or isinstance(value, Mapping):
        return {redact(str(name)): _masked(each, redact) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, redact) for each in value]
    return value


def _check(before: Mapping[str, Any], after: object, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in before:
            continue
        if not isinstance(after, Mapping) or after.get(name) != before[name]:
            raise Forbidden(
                f"the value of a secret is part of a name ({name}) that the state has to keep",
                "Rename the resource that contains it, or give the secret another value. Nothing was written.",
                code="secret-in-name",
            )
